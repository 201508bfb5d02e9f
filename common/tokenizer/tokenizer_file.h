#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/tokenizer/added_tokens.h"
#include "common/tokenizer/bpe.h"
#include "common/tokenizer/pre_tokenizer.h"

namespace selfsame {

// What tokenizer.json describes, checked and in our terms.
struct TokenizerSpec {
  BpeSpec bpe;
  std::vector<AddedToken> added_tokens;
  bool has_nfc = false;
  std::vector<PreTokenizer::Step> pre_tokenizer_steps;
  // Put around an encoded text when special tokens are asked for.
  std::vector<int32_t> prefix_ids;
  std::vector<int32_t> suffix_ids;
};

// What tokenizer_config.json and chat_template.jinja add; empty where they say nothing.
struct TokenizerConfig {
  std::string bos_token;
  std::string eos_token;
  std::string chat_template;
};

// The content of a file. Returns FileError when it is missing, unreadable or larger than
// kMaxTokenizerFileBytes.
absl::StatusOr<std::string> ReadTokenizerFile(const std::string& path);

// Both return InvalidArgumentError naming the JSON field that is malformed, or that asks for
// something outside byte-level BPE.
absl::StatusOr<TokenizerSpec> ParseTokenizerJson(std::string_view json);
absl::StatusOr<TokenizerConfig> ParseTokenizerConfig(std::string_view json);

}  // namespace selfsame
