#pragma once

#include <string>

namespace selfsame::testing {

// Writes DIR/tokenizer.json: a byte-level BPE of `vocab_size` tokens that fits the tiny models. Ids
// 0, 1 and 2 are the special tokens <unk>, <s> and </s>, 3 to 258 the bytes in order, the rest
// pairs of lower-case letters ("aa", "ab", ...), which no merge makes. `vocab_size` is from 259 to
// 900.
void WriteTinyTokenizer(const std::string& dir, int vocab_size);

}  // namespace selfsame::testing
