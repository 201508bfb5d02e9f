#pragma once

#include <cstdint>
#include <string>

namespace selfsame::testing {

// A directory that is removed, with what is in it, when the object goes.
class TempDir {
 public:
  TempDir();
  ~TempDir();
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Shape of a random model. The defaults are as small as a model with grouped heads, several layers
// and sums of more than one vector width can be.
struct TinyModelOptions {
  bool is_qwen3 = false;  // q and k norms
  bool tie_word_embeddings = false;
  bool attention_bias = false;
  int vocab_size = 512;
  int hidden_size = 64;
  int intermediate_size = 160;
  int layer_count = 2;
  int head_count = 4;
  int kv_head_count = 2;
  int head_dim = 16;
  int max_position_embeddings = 2048;
  int eos_token_id = 2;
  // Rows of the head come in groups of this many, in which all are copies of the first with two
  // elements moved by one bf16 step. The best logits are then nearly tied everywhere, the more so
  // the larger the groups, and another order of summation picks another token. 1: no ties.
  int near_tie_rows = 2;
  uint64_t seed = 1;
};

// Writes config.json, generation_config.json and model.safetensors (bf16) under `dir`, which must
// exist. The same options give the same bytes.
void WriteTinyModel(const std::string& dir, const TinyModelOptions& options);

}  // namespace selfsame::testing
