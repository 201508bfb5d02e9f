#pragma once

#include <cstdint>
#include <string>

#include "common/tokenizer/tokenizer.h"
#include "common/tokenizer/utf8.h"

namespace selfsame {

// Turns token ids into text one at a time, never giving out part of a character. Everything pushed,
// then Finish, is exactly Tokenizer::Decode of all the ids.
// A small value: a copy is a snapshot to come back to after a rollback. Not thread safe.
class StreamingDecoder {
 public:
  // `tokenizer` must outlive the decoder and its copies.
  StreamingDecoder(const Tokenizer* tokenizer, bool skip_special_tokens)
      : tokenizer_(tokenizer), skip_special_tokens_(skip_special_tokens) {}

  // The characters that `token_id` completes; possibly none.
  // REQUIRES: 0 <= token_id < tokenizer->vocab_size().
  std::string Push(int32_t token_id);

  // Ends the text: U+FFFD when it ends inside a character, else nothing. The decoder is as new
  // afterwards.
  std::string Finish();

  // True when every byte pushed so far has been given out.
  bool is_at_character_end() const { return assembler_.empty(); }

 private:
  const Tokenizer* tokenizer_;
  bool skip_special_tokens_;
  Utf8Assembler assembler_;
};

}  // namespace selfsame
