#include "common/tokenizer/tokenizer.h"

#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/check.h"
#include "common/errors.h"
#include "common/limits.h"
#include "common/sha256.h"
#include "common/tokenizer/byte_level.h"
#include "common/tokenizer/normalizer.h"
#include "common/tokenizer/tokenizer_file.h"
#include "common/tokenizer/utf8.h"

namespace selfsame {
namespace {

// A parser's complaint about a field, as a complaint about the file it is in.
absl::Status InFile(const std::string& path, const absl::Status& status) {
  return FileError(path, std::string(status.message()));
}

AddedTokenMatcher MatcherOf(const std::vector<AddedToken>& tokens, bool is_normalized,
                            bool has_nfc) {
  std::vector<AddedToken> chosen;
  for (const AddedToken& token : tokens) {
    if (token.normalized != is_normalized) continue;
    chosen.push_back(token);
    if (is_normalized && has_nfc) chosen.back().content = NormalizeNfc(token.content);
  }
  return AddedTokenMatcher(std::move(chosen));
}

bool Exists(const std::string& path) {
  std::error_code error;
  return std::filesystem::exists(path, error);
}

}  // namespace

Tokenizer::Tokenizer(BpeModel bpe, PreTokenizer pre_tokenizer, AddedTokenMatcher raw_added_tokens,
                     AddedTokenMatcher normalized_added_tokens)
    : bpe_(std::move(bpe)),
      pre_tokenizer_(std::move(pre_tokenizer)),
      raw_added_tokens_(std::move(raw_added_tokens)),
      normalized_added_tokens_(std::move(normalized_added_tokens)) {}

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::Load(std::string_view model_dir) {
  const std::string directory(model_dir);
  const std::string json_path = directory + "/tokenizer.json";
  ASSIGN_OR_RETURN(const std::string json, ReadTokenizerFile(json_path));
  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = Create(json);
  if (!tokenizer.ok()) return InFile(json_path, tokenizer.status());

  const std::string config_path = directory + "/tokenizer_config.json";
  if (Exists(config_path)) {
    ASSIGN_OR_RETURN(const std::string config_json, ReadTokenizerFile(config_path));
    absl::StatusOr<TokenizerConfig> config = ParseTokenizerConfig(config_json);
    if (!config.ok()) return InFile(config_path, config.status());
    (*tokenizer)->bos_token_ = std::move(config->bos_token);
    (*tokenizer)->eos_token_ = std::move(config->eos_token);
    (*tokenizer)->chat_template_ = std::move(config->chat_template);
  }
  // The file of its own is the newer format and wins, as it does for transformers.
  const std::string template_path = directory + "/chat_template.jinja";
  if (Exists(template_path)) {
    ASSIGN_OR_RETURN((*tokenizer)->chat_template_, ReadTokenizerFile(template_path));
  }
  return tokenizer;
}

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::CreateForBytes() {
  std::vector<std::string> entries;
  for (int byte = 0; byte < 256; ++byte) {
    const std::string spelling = SpellBytes(std::string(1, static_cast<char>(byte)));
    const bool needs_escape = spelling == "\"" || spelling == "\\";
    entries.push_back(absl::StrCat("\"", needs_escape ? "\\" : "", spelling, "\": ", byte));
  }
  return Create(absl::StrCat(
      R"({"added_tokens": [], "normalizer": null, "post_processor": null, )",
      R"("pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}, )",
      R"("decoder": {"type": "ByteLevel"}, "model": {"type": "BPE", "merges": [], "vocab": {)",
      absl::StrJoin(entries, ", "), "}}}"));
}

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::Create(std::string_view json) {
  ASSIGN_OR_RETURN(TokenizerSpec spec, ParseTokenizerJson(json));
  ASSIGN_OR_RETURN(BpeModel bpe, BpeModel::Create(std::move(spec.bpe)));
  std::unique_ptr<Tokenizer> tokenizer(
      new Tokenizer(std::move(bpe), PreTokenizer(std::move(spec.pre_tokenizer_steps)),
                    MatcherOf(spec.added_tokens, /*is_normalized=*/false, spec.has_nfc),
                    MatcherOf(spec.added_tokens, /*is_normalized=*/true, spec.has_nfc)));
  tokenizer->has_nfc_ = spec.has_nfc;
  RETURN_IF_ERROR(tokenizer->AddVocabulary(spec.added_tokens));
  for (const auto* ids : {&spec.prefix_ids, &spec.suffix_ids}) {
    for (const int32_t id : *ids) {
      if (id < tokenizer->vocab_size()) continue;
      return InvalidArgumentError(
          "post_processor", absl::StrCat("adds token ", id, ", which is not in the vocabulary"));
    }
  }
  tokenizer->prefix_ids_ = std::move(spec.prefix_ids);
  tokenizer->suffix_ids_ = std::move(spec.suffix_ids);
  tokenizer->digest_ = Sha256().Update(json).HexDigest();
  return tokenizer;
}

absl::Status Tokenizer::AddVocabulary(const std::vector<AddedToken>& added_tokens) {
  std::vector<std::string> spellings;
  for (int32_t id = 0; id < bpe_.id_limit(); ++id) spellings.push_back(bpe_.spelling(id));
  is_special_.resize(spellings.size());
  for (size_t i = 0; i < added_tokens.size(); ++i) {
    const AddedToken& token = added_tokens[i];
    // A token takes its entry's id, or the next free one; a file that says otherwise would be read
    // differently by other libraries.
    const std::optional<int32_t> known_id = TokenToId(token.content);
    const int32_t expected_id = known_id.value_or(static_cast<int32_t>(spellings.size()));
    if (token.id != expected_id) {
      return InvalidArgumentError(
          absl::StrCat("added_tokens[", i, "].id"),
          absl::StrCat("is ", token.id, " but \"", token.content, "\" must have id ", expected_id));
    }
    if (!known_id.has_value()) {
      spellings.push_back(token.content);
      is_special_.push_back(false);
    }
    is_special_[token.id] = is_special_[token.id] || token.special;
    added_ids_.emplace(token.content, token.id);
  }
  for (const std::string& spelling : spellings) {
    token_offsets_.push_back(token_bytes_.size());
    token_bytes_ += BytesOfSpelling(spelling);
  }
  token_offsets_.push_back(token_bytes_.size());
  return absl::OkStatus();
}

absl::StatusOr<std::vector<int32_t>> Tokenizer::Encode(std::string_view utf8,
                                                       bool add_special_tokens,
                                                       std::string_view field) const {
  if (utf8.size() > kMaxEncodeBytes) {
    return InvalidArgumentError(
        field, absl::StrCat("has ", utf8.size(), " bytes; the limit is ", kMaxEncodeBytes));
  }
  if (const size_t invalid = FirstInvalidUtf8(utf8); invalid != std::string_view::npos) {
    return InvalidArgumentError(field, absl::StrCat("is not valid UTF-8 at byte ", invalid));
  }
  BpeModel::Scratch scratch;
  std::vector<int32_t> ids;
  if (add_special_tokens) ids = prefix_ids_;
  for (const AddedTokenMatcher::Segment& segment : raw_added_tokens_.Split(utf8)) {
    if (segment.token_id != AddedTokenMatcher::kNoToken) {
      ids.push_back(segment.token_id);
    } else {
      RETURN_IF_ERROR(EncodeText(segment.text, &scratch, &ids));
    }
  }
  if (add_special_tokens) ids.insert(ids.end(), suffix_ids_.begin(), suffix_ids_.end());
  return ids;
}

absl::Status Tokenizer::EncodeText(std::string_view text, BpeModel::Scratch* scratch,
                                   std::vector<int32_t>* ids) const {
  std::string normalized;
  if (has_nfc_) {
    normalized = NormalizeNfc(text);
    text = normalized;
  }
  for (const AddedTokenMatcher::Segment& segment : normalized_added_tokens_.Split(text)) {
    if (segment.token_id != AddedTokenMatcher::kNoToken) {
      ids->push_back(segment.token_id);
      continue;
    }
    RETURN_IF_ERROR(pre_tokenizer_.Run(segment.text, [&](std::string_view word) {
      bpe_.EncodeWord(word, scratch, ids);
      return absl::OkStatus();
    }));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> Tokenizer::Decode(std::span<const int32_t> ids,
                                              bool skip_special_tokens,
                                              std::string_view field) const {
  std::string text;
  Utf8Assembler assembler;
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= vocab_size()) {
      return InvalidArgumentError(field, absl::StrCat("id ", ids[i], " at index ", i,
                                                      " is not in [0, ", vocab_size(), ")"));
    }
    if (skip_special_tokens && IsSpecial(ids[i])) continue;
    assembler.Push(TokenBytes(ids[i]), &text);
  }
  assembler.Finish(&text);
  return text;
}

std::string_view Tokenizer::TokenBytes(int32_t id) const {
  SELFSAME_CHECK(id >= 0 && id < vocab_size());
  return std::string_view(token_bytes_)
      .substr(token_offsets_[id], token_offsets_[id + 1] - token_offsets_[id]);
}

std::optional<int32_t> Tokenizer::TokenToId(std::string_view spelling) const {
  const auto found = added_ids_.find(absl::string_view(spelling.data(), spelling.size()));
  if (found != added_ids_.end()) return found->second;
  return bpe_.Find(spelling);
}

}  // namespace selfsame
