// A checkpoint on disk: any bytes as model.safetensors, or, when they begin with {, as an index
// over two sound shards.

#include <cstddef>
#include <cstdint>
#include <string>

#include "common/check.h"
#include "common/model/safetensors.h"
#include "common/model/weights.h"
#include "tests/fuzz/fuzz_directory.h"
#include "tests/unit/model/fake_ops.h"

namespace selfsame::fuzz {
namespace {

std::string Shard(const std::string& header, size_t data_size_bytes) {
  std::string bytes(8, '\0');
  for (size_t i = 0; i < 8; ++i) bytes[i] = static_cast<char>((header.size() >> (8 * i)) & 0xff);
  return bytes + header + std::string(data_size_bytes, '\1');
}

ModelConfig SmallConfig() {
  ModelConfig config;
  config.vocab_size = 4;
  config.hidden_size = 4;
  config.intermediate_size = 2;
  config.layer_count = 1;
  config.head_count = 2;
  config.kv_head_count = 1;
  config.head_dim = 2;
  config.max_position_embeddings = 16;
  config.tie_word_embeddings = true;
  return config;
}

// Reads every byte a tensor claims to have.
void ReadAll(const Tensor& tensor) {
  if (tensor.dtype) {
    SELFSAME_CHECK(reinterpret_cast<uintptr_t>(tensor.data) % DTypeSize(*tensor.dtype) == 0);
  }
  volatile uint8_t sum = 0;
  for (size_t i = 0; i < tensor.size_bytes; ++i) {
    sum = static_cast<uint8_t>(sum + static_cast<const uint8_t*>(tensor.data)[i]);
  }
}

void TestFile(std::string_view bytes) {
  static const FuzzDirectory& dir = *new FuzzDirectory;
  dir.Write("model.safetensors", bytes);
  const auto file = SafetensorsFile::Open(dir.path() + "/model.safetensors");
  if (!file.ok()) {
    SELFSAME_CHECK(!file.status().message().empty());
    return;
  }
  for (const auto& [name, tensor] : (*file)->tensors()) ReadAll(tensor);
  FakeOps ops;
  (void)LoadModelWeights(dir.path(), SmallConfig(), {}, ops);
  (void)LoadModelWeights(dir.path(), SmallConfig(), {.index = 1, .count = 2}, ops);
}

void TestIndex(std::string_view json) {
  static const FuzzDirectory& dir = *new FuzzDirectory;
  static const bool is_ready = [] {
    dir.Write("a", Shard(R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 8));
    dir.Write("b", Shard(R"({"y":{"dtype":"BF16","shape":[1,3],"data_offsets":[0,6]}})", 6));
    return true;
  }();
  SELFSAME_CHECK(is_ready);
  dir.Write("model.safetensors.index.json", json);
  const auto checkpoint = Checkpoint::Open(dir.path());
  if (!checkpoint.ok()) return;
  for (const char* name : {"x", "y"}) {
    if (const Tensor* tensor = checkpoint->Find(name)) ReadAll(*tensor);
  }
}

}  // namespace
}  // namespace selfsame::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes = selfsame::fuzz::ToText(data, size);
  if (!bytes.empty() && bytes.front() == '{') {
    selfsame::fuzz::TestIndex(bytes);
  } else {
    selfsame::fuzz::TestFile(bytes);
  }
  return 0;
}
