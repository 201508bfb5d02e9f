#include "decoder/client/check_reference.h"

#include <bit>
#include <cstdint>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "common/errors.h"

namespace selfsame::client {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kFormat = "selfsame-reference-1";

uint32_t BitsOf(float value) { return std::bit_cast<uint32_t>(value); }

// A file leaves out what is at its default.
float FloatOr(const Json& json, const char* name, float fallback) {
  return json.contains(name) ? std::bit_cast<float>(json[name].get<uint32_t>()) : fallback;
}

Json CaseToJson(const CheckCase& check_case) {
  Json json = {{"prompt", check_case.prompt},
               {"chat", check_case.chat},
               {"temperature_bits", BitsOf(check_case.temperature)},
               {"seed", check_case.seed},
               {"max_tokens", check_case.max_tokens},
               {"ignore_eos", check_case.ignore_eos}};
  const CheckCase plain{};
  const auto add = [&json](const char* name, float value, float default_value) {
    if (value != default_value) json[name] = BitsOf(value);
  };
  add("min_p_bits", check_case.min_p, plain.min_p);
  add("repetition_penalty_bits", check_case.repetition_penalty, plain.repetition_penalty);
  add("presence_penalty_bits", check_case.presence_penalty, plain.presence_penalty);
  add("frequency_penalty_bits", check_case.frequency_penalty, plain.frequency_penalty);
  if (check_case.prompt_logprobs) json["prompt_logprobs"] = *check_case.prompt_logprobs;
  return json;
}

CheckCase CaseFromJson(const Json& json) {
  return {.prompt = json.at("prompt").get<std::string>(),
          .chat = json.at("chat").get<bool>(),
          .temperature = std::bit_cast<float>(json.at("temperature_bits").get<uint32_t>()),
          .min_p = FloatOr(json, "min_p_bits", 0.0f),
          .repetition_penalty = FloatOr(json, "repetition_penalty_bits", 1.0f),
          .presence_penalty = FloatOr(json, "presence_penalty_bits", 0.0f),
          .frequency_penalty = FloatOr(json, "frequency_penalty_bits", 0.0f),
          .prompt_logprobs = json.contains("prompt_logprobs")
                                 ? std::optional(json["prompt_logprobs"].get<int32_t>())
                                 : std::nullopt,
          .seed = json.at("seed").get<uint64_t>(),
          .max_tokens = json.at("max_tokens").get<int32_t>(),
          .ignore_eos = json.at("ignore_eos").get<bool>()};
}

// Token, bits, token, bits, ..
Json TopToJson(const TopLogprobs& top) {
  Json json = Json::array();
  for (const TokenLogprob& entry : top) {
    json.push_back(entry.token_id);
    json.push_back(BitsOf(entry.logprob));
  }
  return json;
}

TopLogprobs TopFromJson(const Json& json) {
  TopLogprobs top;
  for (size_t i = 0; i < json.size(); i += 2) {
    top.push_back(
        {json.at(i).get<int32_t>(), std::bit_cast<float>(json.at(i + 1).get<uint32_t>())});
  }
  return top;
}

// Logprobs are kept as the integers of their bits: no decimal comes between the two runs.
Json AnswerToJson(const Answer& answer) {
  std::vector<uint32_t> logprob_bits;
  for (const float logprob : answer.logprobs) {
    logprob_bits.push_back(BitsOf(logprob));
  }
  Json json = {{"token_ids", answer.token_ids},
               {"logprob_bits", logprob_bits},
               {"text", answer.text},
               {"finish_reason", FinishReasonName(answer.finish_reason)}};
  for (const TopLogprobs& top : answer.top_logprobs) json["top_logprobs"].push_back(TopToJson(top));
  for (const PromptLogprob& entry : answer.prompt_logprobs) {
    json["prompt_logprob_bits"].push_back(BitsOf(entry.logprob));
    json["prompt_top_logprobs"].push_back(TopToJson(entry.top));
  }
  if (answer.stop_string) json["stop_string"] = *answer.stop_string;
  if (answer.stop_token_id) json["stop_token_id"] = *answer.stop_token_id;
  return json;
}

Answer AnswerFromJson(const Json& json) {
  Answer answer;
  answer.token_ids = json.at("token_ids").get<std::vector<int32_t>>();
  for (const Json& bits : json.at("logprob_bits")) {
    answer.logprobs.push_back(std::bit_cast<float>(bits.get<uint32_t>()));
  }
  if (json.contains("top_logprobs")) {
    for (const Json& top : json["top_logprobs"]) answer.top_logprobs.push_back(TopFromJson(top));
  }
  if (json.contains("prompt_logprob_bits")) {
    for (const Json& bits : json["prompt_logprob_bits"]) {
      const size_t i = answer.prompt_logprobs.size();
      answer.prompt_logprobs.push_back({std::bit_cast<float>(bits.get<uint32_t>()),
                                        TopFromJson(json.at("prompt_top_logprobs").at(i))});
    }
  }
  answer.text = json.at("text").get<std::string>();
  answer.finish_reason = json.at("finish_reason").get<std::string>() == "stop"
                             ? FinishReason::kStop
                             : FinishReason::kLength;
  if (json.contains("stop_string")) answer.stop_string = json["stop_string"].get<std::string>();
  if (json.contains("stop_token_id")) answer.stop_token_id = json["stop_token_id"].get<int32_t>();
  return answer;
}

}  // namespace

std::string SerializeReference(const SavedReference& reference) {
  Json json = {{"format", kFormat},
               {"fingerprint", reference.fingerprint},
               {"model", reference.model},
               {"requests", Json::array()}};
  for (size_t i = 0; i < reference.cases.size(); ++i) {
    Json request = CaseToJson(reference.cases[i]);
    request["answer"] = AnswerToJson(reference.answers[i]);
    if (!reference.ordinary_answers.empty()) {
      request["ordinary_answer"] = AnswerToJson(reference.ordinary_answers[i]);
    }
    json["requests"].push_back(std::move(request));
  }
  return json.dump(1) + "\n";
}

absl::StatusOr<SavedReference> ParseReference(std::string_view path, const std::string& text) {
  try {
    const Json json = Json::parse(text);
    if (json.at("format").get<std::string>() != kFormat) {
      return FileError(path, "is not a reference this version can read");
    }
    SavedReference reference;
    reference.fingerprint = json.at("fingerprint").get<std::string>();
    reference.model = json.at("model").get<std::string>();
    for (const Json& request : json.at("requests")) {
      reference.cases.push_back(CaseFromJson(request));
      reference.answers.push_back(AnswerFromJson(request.at("answer")));
      if (request.contains("ordinary_answer")) {
        reference.ordinary_answers.push_back(AnswerFromJson(request["ordinary_answer"]));
      }
    }
    if (!reference.ordinary_answers.empty() &&
        reference.ordinary_answers.size() != reference.cases.size()) {
      return FileError(path, "lacks some of the ordinary answers");
    }
    return reference;
  } catch (const nlohmann::json::exception& error) {
    return FileError(path, absl::StrCat("is not a reference of `selfsame check`: ", error.what()));
  }
}

absl::Status CheckSameCases(const SavedReference& reference, const std::vector<CheckCase>& cases) {
  if (reference.cases.size() != cases.size()) {
    return FailedPreconditionError(absl::StrCat("the reference has ", reference.cases.size(),
                                                " requests, this run ", cases.size()));
  }
  for (size_t i = 0; i < cases.size(); ++i) {
    if (reference.cases[i] != cases[i]) {
      return FailedPreconditionError(absl::StrCat(
          "request ", i, " of the reference has another prompt or other parameters than this run"));
    }
  }
  return absl::OkStatus();
}

}  // namespace selfsame::client
