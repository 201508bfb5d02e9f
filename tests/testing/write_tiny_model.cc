// Writes a random model with a tokeniser that both services can serve: selfsame-tiny-model DIR.
// Its products are large enough for a GPU's fastest algorithms to split their sums, and its two
// best logits are nearly tied everywhere.

#include <cstdio>
#include <filesystem>

#include "tests/testing/tiny_model.h"
#include "tests/testing/tiny_tokenizer.h"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: selfsame-tiny-model DIR\n");
    return 2;
  }
  std::filesystem::create_directories(argv[1]);
  constexpr int kVocabSize = 900;
  selfsame::testing::WriteTinyModel(argv[1], {.vocab_size = kVocabSize,
                                              .hidden_size = 2048,
                                              .intermediate_size = 8192,
                                              .layer_count = 2,
                                              .head_count = 16,
                                              .kv_head_count = 8,
                                              .head_dim = 128});
  selfsame::testing::WriteTinyTokenizer(argv[1], kVocabSize);
  return 0;
}
