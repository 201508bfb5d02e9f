#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/tokenizer/added_tokens.h"
#include "common/tokenizer/bpe.h"
#include "common/tokenizer/pre_tokenizer.h"

namespace selfsame {

// Text to token ids and back, for byte-level BPE models in the Hugging Face format. Gives the ids
// and the text that the tokenizers library (0.23) gives for the same tokenizer.json.
// Immutable after Load; every method may be called from any thread.
class Tokenizer {
 public:
  // Reads tokenizer.json and, where they exist, tokenizer_config.json and chat_template.jinja from
  // `model_dir`. Returns FileError naming the file and the field when one is missing, malformed, or
  // needs a model, normaliser, pre-tokeniser, post-processor or decoder that is not supported.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Load(std::string_view model_dir);

  // Each byte is a token, whose id is the byte: a tokeniser for models without one.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> CreateForBytes();

  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  // The ids of `utf8`. Added and special tokens written out in the text become those tokens, as
  // they do in the tokenizers library. `add_special_tokens` puts what the model's post-processor
  // adds around it (the begin-of-text token of Llama 3; nothing for many models); false for text
  // that a chat template rendered. Returns InvalidArgumentError naming `field` when the text is not
  // valid UTF-8 or longer than kMaxEncodeBytes. Time is O(n log n) in the longest word, else O(n).
  absl::StatusOr<std::vector<int32_t>> Encode(std::string_view utf8, bool add_special_tokens,
                                              std::string_view field = "text") const;

  // The text of `ids`; bytes that are not valid UTF-8 become U+FFFD, one for each maximal
  // ill-formed subpart. `skip_special_tokens` leaves special tokens out. Returns
  // InvalidArgumentError naming `field` on an id outside the vocabulary.
  absl::StatusOr<std::string> Decode(std::span<const int32_t> ids, bool skip_special_tokens,
                                     std::string_view field = "token_ids") const;

  // The bytes a token stands for, perhaps part of a character. Empty for an id that the vocabulary
  // leaves out. Valid as long as the tokeniser. REQUIRES: 0 <= id < vocab_size().
  std::string_view TokenBytes(int32_t id) const;

  // Whether `id` is a special token. REQUIRES: 0 <= id < vocab_size().
  bool IsSpecial(int32_t id) const { return is_special_[id]; }

  // The id of a token given as the tokeniser file spells it ("<|im_end|>", "Ġthe").
  std::optional<int32_t> TokenToId(std::string_view spelling) const;

  // One more than the largest token id. A model may have more (padded) rows in its embedding.
  int32_t vocab_size() const { return static_cast<int32_t>(is_special_.size()); }

  // SHA-256 of tokenizer.json, in hexadecimal.
  const std::string& digest() const { return digest_; }

  // From tokenizer_config.json and chat_template.jinja; empty, or no id, where they say nothing.
  const std::string& bos_token() const { return bos_token_; }
  const std::string& eos_token() const { return eos_token_; }
  std::optional<int32_t> bos_token_id() const { return TokenToId(bos_token_); }
  std::optional<int32_t> eos_token_id() const { return TokenToId(eos_token_); }
  const std::string& chat_template() const { return chat_template_; }

 private:
  Tokenizer(BpeModel bpe, PreTokenizer pre_tokenizer, AddedTokenMatcher raw_added_tokens,
            AddedTokenMatcher normalized_added_tokens);
  // From the content of tokenizer.json.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Create(std::string_view json);

  absl::Status AddVocabulary(const std::vector<AddedToken>& added_tokens);
  absl::Status EncodeText(std::string_view text, BpeModel::Scratch* scratch,
                          std::vector<int32_t>* ids) const;

  BpeModel bpe_;
  PreTokenizer pre_tokenizer_;
  // Looked for in the text as given, and in the normalised rest.
  AddedTokenMatcher raw_added_tokens_;
  AddedTokenMatcher normalized_added_tokens_;
  bool has_nfc_ = false;
  std::vector<int32_t> prefix_ids_;
  std::vector<int32_t> suffix_ids_;
  absl::flat_hash_map<std::string, int32_t> added_ids_;
  std::vector<bool> is_special_;       // [id]
  std::string token_bytes_;            // of all tokens, by id
  std::vector<size_t> token_offsets_;  // [vocab_size + 1] into token_bytes_
  std::string digest_;
  std::string bos_token_;
  std::string eos_token_;
  std::string chat_template_;
};

}  // namespace selfsame
