// Writes a random model with a tokeniser that both services can serve: selfsame-tiny-model DIR.
// Its shape is one the CUDA kernels take; its two best logits are nearly tied everywhere.

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
                                              .hidden_size = 576,
                                              .intermediate_size = 1536,
                                              .layer_count = 6,
                                              .head_count = 9,
                                              .kv_head_count = 3,
                                              .head_dim = 64});
  selfsame::testing::WriteTinyTokenizer(argv[1], kVocabSize);
  return 0;
}
