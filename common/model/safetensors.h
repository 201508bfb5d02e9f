#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/ops.h"

namespace selfsame {

// A tensor of a checkpoint. Views the checkpoint's memory.
struct Tensor {
  std::string path;            // the file it is in, for messages
  std::string dtype_name;      // as the file spells it: "BF16"
  std::optional<DType> dtype;  // empty: a type this project does not compute with
  std::vector<int64_t> shape;
  const void* data = nullptr;  // row-major, aligned to the element size when dtype is set
  size_t size_bytes = 0;
};

size_t DTypeSize(DType dtype);

// One *.safetensors file, mapped into memory read-only. The file must not be truncated meanwhile.
// Thread safe once open.
//
// The file: an 8-byte little-endian header length, a JSON object {name: {dtype, shape,
// data_offsets}}, then the tensors' bytes, which must cover the rest of the file without holes or
// overlap.
class SafetensorsFile {
 public:
  // FileError when the file is missing, truncated or breaks any rule of the format.
  static absl::StatusOr<std::unique_ptr<SafetensorsFile>> Open(std::string_view path);
  ~SafetensorsFile();
  SafetensorsFile(const SafetensorsFile&) = delete;
  SafetensorsFile& operator=(const SafetensorsFile&) = delete;

  // By name. Valid as long as this object.
  const std::map<std::string, Tensor, std::less<>>& tensors() const { return tensors_; }

 private:
  SafetensorsFile(std::string path, const uint8_t* mapping, size_t size_bytes);
  absl::Status ParseHeader();
  absl::Status CheckCoverage(size_t data_size_bytes) const;
  void AlignTensors();

  std::string path_;
  const uint8_t* mapping_;
  size_t size_bytes_;
  const uint8_t* data_ = nullptr;
  std::map<std::string, Tensor, std::less<>> tensors_;
  // Copies of tensors whose place in the file is not aligned to their element size.
  std::vector<std::unique_ptr<uint64_t[]>> aligned_copies_;
};

// The tensors of a model directory: DIR/model.safetensors or, without it, the shards that
// DIR/model.safetensors.index.json names. Thread safe once open.
class Checkpoint {
 public:
  // FileError when there is neither, or as SafetensorsFile::Open, or when the index names a shard
  // that is missing or a tensor its shard lacks.
  static absl::StatusOr<Checkpoint> Open(std::string_view model_dir);

  // Null when there is none. Valid as long as this object.
  const Tensor* Find(std::string_view name) const;

  // The file that lists the tensors, for messages.
  const std::string& path() const { return path_; }

 private:
  absl::Status OpenShards(std::string_view model_dir);

  std::string path_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::map<std::string, const Tensor*, std::less<>> tensors_;
};

}  // namespace selfsame
