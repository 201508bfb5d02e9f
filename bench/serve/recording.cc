#include "bench/serve/recording.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "common/errors.h"

namespace selfsame::bench {
namespace {

using Json = nlohmann::ordered_json;

RecordedRequest FromJson(const Json& json) {
  RecordedRequest request;
  request.arrival_s = json.at("arrival_s").get<double>();
  request.first_token_s = json.at("first_token_s").get<double>();
  request.token_s = json.at("token_s").get<double>();
  request.temperature = json.at("temperature").get<float>();
  request.seed = json.at("seed").get<uint64_t>();
  request.windows = json.at("windows").get<int32_t>();
  request.prompt_token_ids = json.at("prompt_token_ids").get<std::vector<int32_t>>();
  request.output_token_ids = json.at("output_token_ids").get<std::vector<int32_t>>();
  return request;
}

}  // namespace

std::string WriteRecording(const std::vector<PlannedRequest>& plan, const LoadResult& result) {
  std::vector<const LoadSample*> samples;
  for (const LoadSample& sample : result.samples) {
    if (sample.is_deterministic) samples.push_back(&sample);
  }
  std::sort(samples.begin(), samples.end(),
            [](const LoadSample* a, const LoadSample* b) { return a->plan_index < b->plan_index; });
  Json requests = Json::array();
  for (const LoadSample* sample : samples) {
    const PlannedRequest& planned = plan[sample->plan_index];
    requests.push_back({{"arrival_s", planned.arrival_s},
                        {"first_token_s", sample->seconds_to_first_token},
                        {"token_s", sample->seconds_per_output_token},
                        {"temperature", planned.request.temperature.value_or(0.0f)},
                        {"seed", planned.request.seed.value_or(0)},
                        {"windows", sample->windows},
                        {"prompt_token_ids", std::get<std::vector<int32_t>>(planned.request.input)},
                        {"output_token_ids", sample->token_ids}});
  }
  Json recording = Json::object();
  recording["requests"] = std::move(requests);
  return recording.dump() + "\n";
}

absl::StatusOr<std::vector<RecordedRequest>> ReadRecording(std::string_view text) {
  try {
    std::vector<RecordedRequest> requests;
    const Json recording = Json::parse(text);
    for (const Json& json : recording.at("requests")) {
      RecordedRequest request = FromJson(json);
      if (request.prompt_token_ids.empty() || request.output_token_ids.empty()) {
        return InvalidArgumentError("recording", "has a request without tokens");
      }
      requests.push_back(std::move(request));
    }
    return requests;
  } catch (const Json::exception& error) {
    return InvalidArgumentError("recording", absl::StrCat("is malformed: ", error.what()));
  }
}

}  // namespace selfsame::bench
