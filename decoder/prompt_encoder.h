#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "common/tokenizer/chat_template.h"
#include "common/tokenizer/tokenizer.h"
#include "selfsame/v1/inference.pb.h"

namespace selfsame::decoder {

// Turns what a client sent as input into token ids. Immutable, thread safe.
class PromptEncoder {
 public:
  // `tokenizer` must outlive this. A model without a chat template, or with one that is not known,
  // still serves prompts; chat requests then get the error that says so.
  explicit PromptEncoder(const Tokenizer& tokenizer);

  // REQUIRES: the request passed ValidateGenerate.
  absl::StatusOr<std::vector<int32_t>> Encode(const v1::GenerateRequest& request) const;
  // REQUIRES: the request passed ValidateTokenize.
  absl::StatusOr<std::vector<int32_t>> Encode(const v1::TokenizeRequest& request) const;

 private:
  absl::StatusOr<std::vector<int32_t>> EncodeChat(const v1::ChatMessages& chat) const;

  const Tokenizer& tokenizer_;
  const absl::StatusOr<ChatTemplate> chat_template_;
};

}  // namespace selfsame::decoder
