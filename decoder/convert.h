#pragma once

// Between protocol messages and the engine's plain data. Requests are validated before; verdicts
// come from another process and are checked here for everything that can be seen without the
// session's state.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/model/config.h"
#include "decoder/engine/types.h"
#include "selfsame/v1/inference.pb.h"
#include "selfsame/v1/verification.pb.h"

namespace selfsame::decoder {

// What a request gets for the fields it leaves unset.
struct RequestDefaults {
  float temperature = 1.0f;
  int32_t top_k = 0;
  float top_p = 1.0f;
  float min_p = 0.0f;
  float repetition_penalty = 1.0f;
  std::vector<int32_t> eos_token_ids;
};

RequestDefaults ToRequestDefaults(const GenerationDefaults& defaults);

// Resolves every default. `drawn_seed` is taken when the request has none. deadline and request_id
// are the caller's to set. REQUIRES: the request passed ValidateGenerate and ValidateLengths with
// `prompt_token_ids`.
GenerationRequest ToGenerationRequest(const v1::GenerateRequest& request,
                                      std::vector<int32_t> prompt_token_ids,
                                      const RequestDefaults& defaults, int32_t context_limit,
                                      uint64_t drawn_seed);

// The first message of a stream, all but the fingerprint.
v1::Started ToProto(const GenerationRequest& request);
v1::Chunk ToProto(const ChunkEvent& event, int32_t choice_index);
v1::Retract ToProto(const RetractEvent& event, int32_t choice_index);
v1::Complete ToProto(const CompleteEvent& event, uint64_t seed, int32_t choice_index);

v1::OpenSession ToProto(const SessionOpening& opening);
v1::SubmitWindow ToProto(const Window& window);

// INTERNAL, naming the field, when the message breaks the protocol.
absl::StatusOr<Verdict> FromProto(const v1::Verdict& verdict);
absl::StatusOr<VerifierInfo> FromProto(const v1::GetVerifierInfoResponse& response);
// The error a verifier ended a session with; never OK.
absl::Status FromProto(const v1::SessionError& error);

}  // namespace selfsame::decoder
