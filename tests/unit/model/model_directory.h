#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "common/model/config.h"
#include "kernels/ops.h"

namespace selfsame {

// A tensor as a test writes it.
struct TestTensor {
  std::string dtype = "BF16";
  std::vector<int64_t> shape;
  std::string bytes;
};

using TestTensors = std::map<std::string, TestTensor>;

// A temporary directory that goes away with the object.
class TempDirectory {
 public:
  TempDirectory();
  ~TempDirectory();
  TempDirectory(const TempDirectory&) = delete;
  TempDirectory& operator=(const TempDirectory&) = delete;

  const std::string& path() const { return path_; }
  std::string File(const std::string& name) const { return path_ + "/" + name; }
  void Write(const std::string& name, const std::string& content) const;
  std::string Read(const std::string& name) const;

 private:
  std::string path_;
};

// The bytes of a well-formed safetensors file; `header_padding` spaces are appended to its header.
std::string SafetensorsBytes(const TestTensors& tensors, int header_padding = 0);

// A header and data put together without any check.
std::string RawSafetensors(const std::string& header, const std::string& data);

// Values encoded as BF16, F16 or F32. F16 takes values that are multiples of 2^-10 below 2.
std::string Encode(const std::string& dtype, const std::vector<float>& values);

// A small model with every tensor `config` asks for. Values are distinct multiples of 1/64, exact
// in every dtype, and the same for the same name whatever the dtype.
TestTensors MakeTensors(const ModelConfig& config, const std::string& dtype = "BF16");
std::vector<float> TensorValues(const std::string& name, int64_t count);

}  // namespace selfsame
