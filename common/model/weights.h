#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/model/config.h"
#include "kernels/ops.h"

namespace selfsame {

// A bf16 vector on the device (norm weights, biases).
using DeviceVector = std::unique_ptr<DeviceBuffer>;

inline const BFloat16* VectorData(const DeviceVector& vector) {
  return vector == nullptr ? nullptr : static_cast<const BFloat16*>(vector->data());
}

struct LayerWeights {
  DeviceVector input_norm;                // [hidden]
  std::unique_ptr<PackedMatrix> qkv;      // [(heads + 2 kv_heads) * head_dim, hidden]
  DeviceVector qkv_bias;                  // or null
  DeviceVector q_norm;                    // [head_dim] or null
  DeviceVector k_norm;                    // [head_dim] or null
  std::unique_ptr<PackedMatrix> output;   // [hidden, heads * head_dim]
  DeviceVector output_bias;               // or null
  DeviceVector post_attention_norm;       // [hidden]
  std::unique_ptr<PackedMatrix> gate_up;  // [2 * intermediate, hidden]: gate rows, then up rows
  DeviceVector gate_up_bias;              // or null
  std::unique_ptr<PackedMatrix> down;     // [hidden, intermediate]
  DeviceVector down_bias;                 // or null
};

// One rank's weights of a model, on one device. Immutable after loading.
struct ModelWeights {
  std::unique_ptr<PackedMatrix> embedding;  // [vocab, hidden]
  std::vector<LayerWeights> layers;
  DeviceVector final_norm;             // [hidden]
  std::unique_ptr<PackedMatrix> head;  // [vocab, hidden]; null when tied to the embedding
  // SHA-256 over the names, shapes, types and bytes of all tensors the model uses, sorted by name.
  std::string digest;

  const PackedMatrix& lm_head() const { return head == nullptr ? *embedding : *head; }
};

struct Rank {
  int index = 0;
  int count = 1;
};

// Reads DIR/model.safetensors, or the shards DIR/model.safetensors.index.json names, and packs what
// `rank` holds: q, k, v, gate and up are split by rows, o and down by columns (their biases stay on
// rank 0). A file that is missing, truncated or malformed, a tensor that is missing or has another
// shape or type than `config` asks for: one FAILED_PRECONDITION naming file and tensor.
absl::StatusOr<ModelWeights> LoadModelWeights(std::string_view model_dir, const ModelConfig& config,
                                              Rank rank, Ops& ops);

}  // namespace selfsame
