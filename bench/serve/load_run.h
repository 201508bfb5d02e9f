#pragma once

#include <vector>

#include "bench/serve/load_plan.h"
#include "bench/serve/load_report.h"
#include "decoder/client/inference_api.h"

namespace selfsame::bench {

// Sends the plan with at most `max_in_flight` requests open at once, each no earlier than its
// arrival, and none once `duration_s` seconds have passed (0: no such end). Waits for all that were
// sent. The first few failures are printed on standard error.
LoadResult RunLoad(client::InferenceApi& server, const std::vector<PlannedRequest>& plan,
                   int max_in_flight, double duration_s);

}  // namespace selfsame::bench
