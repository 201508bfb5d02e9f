#include "common/model/safetensors.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <set>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "common/file.h"
#include "common/limits.h"
#include "nlohmann/json.hpp"

namespace selfsame {
namespace {

using Json = nlohmann::json;

constexpr size_t kLengthBytes = 8;

absl::string_view ToAbsl(std::string_view text) { return {text.data(), text.size()}; }

struct ElementType {
  const char* name;
  size_t size_bytes;
  std::optional<DType> dtype;
};

constexpr ElementType kElementTypes[] = {
    {"BF16", 2, DType::kBFloat16},
    {"F16", 2, DType::kFloat16},
    {"F32", 4, DType::kFloat32},
    {"F64", 8, {}},
    {"I64", 8, {}},
    {"U64", 8, {}},
    {"I32", 4, {}},
    {"U32", 4, {}},
    {"I16", 2, {}},
    {"U16", 2, {}},
    {"I8", 1, {}},
    {"U8", 1, {}},
    {"BOOL", 1, {}},
    {"F8_E4M3", 1, {}},
    {"F8_E5M2", 1, {}},
};

const ElementType* FindElementType(std::string_view name) {
  for (const ElementType& type : kElementTypes) {
    if (name == type.name) return &type;
  }
  return nullptr;
}

// Parses a JSON object and notices a key given twice in the outer object, which plain parsing
// hides.
absl::StatusOr<Json> ParseObject(std::string_view path, std::string_view what,
                                 std::string_view text) {
  std::set<std::string> keys;
  bool has_duplicate = false;
  const auto note_keys = [&](int depth, Json::parse_event_t event, Json& value) {
    if (depth == 1 && event == Json::parse_event_t::key) {
      has_duplicate |= !keys.insert(value.get<std::string>()).second;
    }
    return true;
  };
  Json json = Json::parse(text.begin(), text.end(), note_keys, /*allow_exceptions=*/false);
  if (json.is_discarded() || !json.is_object()) {
    return FileError(path, absl::StrCat(ToAbsl(what), " is not a JSON object"));
  }
  if (has_duplicate) {
    return FileError(path, absl::StrCat(ToAbsl(what), " names the same entry twice"));
  }
  return json;
}

// A list of non-negative integers.
std::optional<std::vector<int64_t>> ReadCounts(const Json& entry, const char* name) {
  const auto found = entry.find(name);
  if (found == entry.end() || !found->is_array()) return std::nullopt;
  std::vector<int64_t> counts;
  for (const Json& value : *found) {
    if (!value.is_number_unsigned() || value.get<uint64_t>() > uint64_t{INT64_MAX}) {
      return std::nullopt;
    }
    counts.push_back(value.get<int64_t>());
  }
  return counts;
}

// element size * product of the shape, or nothing when that does not fit.
std::optional<int64_t> ShapeBytes(const std::vector<int64_t>& shape, size_t element_size) {
  int64_t size = static_cast<int64_t>(element_size);
  for (const int64_t extent : shape) {
    if (__builtin_mul_overflow(size, extent, &size)) return std::nullopt;
  }
  return size;
}

// One header entry. Its data pointer is set relative to `data`, whose extent is `data_size_bytes`.
absl::StatusOr<Tensor> ParseTensor(const std::string& path, const std::string& name,
                                   const Json& entry, const uint8_t* data, size_t data_size_bytes) {
  const auto error = [&](std::string_view message) {
    return FileError(path, absl::StrCat("tensor '", name, "': ", ToAbsl(message)));
  };
  if (!entry.is_object()) return error("header entry is not an object");
  const auto dtype = entry.find("dtype");
  if (dtype == entry.end() || !dtype->is_string()) return error("dtype is not a string");
  const auto shape = ReadCounts(entry, "shape");
  if (!shape.has_value()) return error("shape is not a list of sizes");
  const auto offsets = ReadCounts(entry, "data_offsets");
  if (!offsets.has_value() || offsets->size() != 2 || (*offsets)[0] > (*offsets)[1]) {
    return error("data_offsets is not a pair of increasing offsets");
  }
  if ((*offsets)[1] > static_cast<int64_t>(data_size_bytes)) {
    return error(absl::StrCat("ends at data byte ", (*offsets)[1], " but the file has only ",
                              data_size_bytes, "; is it truncated?"));
  }
  Tensor tensor;
  tensor.path = path;
  tensor.dtype_name = dtype->get<std::string>();
  tensor.shape = *shape;
  tensor.data = data + (*offsets)[0];
  tensor.size_bytes = static_cast<size_t>((*offsets)[1] - (*offsets)[0]);
  // Types unknown here are an error only for who uses the tensor.
  const ElementType* type = FindElementType(tensor.dtype_name);
  if (type == nullptr) return tensor;
  tensor.dtype = type->dtype;
  const auto size = ShapeBytes(tensor.shape, type->size_bytes);
  if (!size.has_value() || *size != static_cast<int64_t>(tensor.size_bytes)) {
    return error(absl::StrCat("has ", tensor.size_bytes,
                              " bytes, which its shape and dtype do not agree with"));
  }
  return tensor;
}

}  // namespace

size_t DTypeSize(DType dtype) { return dtype == DType::kFloat32 ? 4 : 2; }

SafetensorsFile::SafetensorsFile(std::string path, const uint8_t* mapping, size_t size_bytes)
    : path_(std::move(path)), mapping_(mapping), size_bytes_(size_bytes) {}

SafetensorsFile::~SafetensorsFile() { ::munmap(const_cast<uint8_t*>(mapping_), size_bytes_); }

absl::StatusOr<std::unique_ptr<SafetensorsFile>> SafetensorsFile::Open(std::string_view path) {
  // O_NONBLOCK: opening a named pipe must fail below, not wait for a writer.
  const int fd = ::open(std::string(path).c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return FileError(path, std::strerror(errno));
  const absl::Cleanup close_fd = [fd] { ::close(fd); };

  struct stat info;
  if (::fstat(fd, &info) != 0) return FileError(path, std::strerror(errno));
  if (!S_ISREG(info.st_mode)) return FileError(path, "is not a regular file");
  const size_t size = static_cast<size_t>(info.st_size);
  if (size < kLengthBytes) {
    return FileError(path, absl::StrCat("has ", size, " bytes, too few for a safetensors file"));
  }
  void* mapping = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
  if (mapping == MAP_FAILED) return FileError(path, std::strerror(errno));

  std::unique_ptr<SafetensorsFile> file(
      new SafetensorsFile(std::string(path), static_cast<const uint8_t*>(mapping), size));
  RETURN_IF_ERROR(file->ParseHeader());
  file->AlignTensors();
  return file;
}

absl::Status SafetensorsFile::ParseHeader() {
  uint64_t header_size = 0;
  for (size_t i = 0; i < kLengthBytes; ++i) header_size |= uint64_t{mapping_[i]} << (8 * i);
  if (header_size > uint64_t{kMaxSafetensorsHeaderBytes}) {
    return FileError(path_, absl::StrCat("header length is ", header_size, "; the limit is ",
                                         kMaxSafetensorsHeaderBytes));
  }
  if (header_size > size_bytes_ - kLengthBytes) {
    return FileError(path_, absl::StrCat("header length is ", header_size,
                                         " but the file has only ", size_bytes_, " bytes"));
  }
  const std::string_view header(reinterpret_cast<const char*>(mapping_) + kLengthBytes,
                                header_size);
  ASSIGN_OR_RETURN(const Json json, ParseObject(path_, "header", header));

  data_ = mapping_ + kLengthBytes + header_size;
  const size_t data_size = size_bytes_ - kLengthBytes - header_size;
  for (const auto& [name, entry] : json.items()) {
    if (name == "__metadata__") continue;
    ASSIGN_OR_RETURN(Tensor tensor, ParseTensor(path_, name, entry, data_, data_size));
    tensors_.emplace(name, std::move(tensor));
  }
  return CheckCoverage(data_size);
}

absl::Status SafetensorsFile::CheckCoverage(size_t data_size_bytes) const {
  struct Extent {
    size_t begin;
    size_t end;
    const std::string* name;
  };
  std::vector<Extent> extents;
  for (const auto& [name, tensor] : tensors_) {
    const size_t begin = static_cast<const uint8_t*>(tensor.data) - data_;
    extents.push_back({begin, begin + tensor.size_bytes, &name});
  }
  std::sort(extents.begin(), extents.end(), [](const Extent& a, const Extent& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  size_t covered = 0;
  for (const Extent& extent : extents) {
    if (extent.begin != covered) {
      return FileError(
          path_, absl::StrCat("tensor '", *extent.name, "' begins at data byte ", extent.begin,
                              " but the one before it ends at ", covered));
    }
    covered = extent.end;
  }
  if (covered != data_size_bytes) {
    return FileError(
        path_, absl::StrCat("has ", data_size_bytes - covered, " bytes after its last tensor"));
  }
  return absl::OkStatus();
}

void SafetensorsFile::AlignTensors() {
  for (auto& [name, tensor] : tensors_) {
    if (!tensor.dtype.has_value()) continue;
    if (reinterpret_cast<uintptr_t>(tensor.data) % DTypeSize(*tensor.dtype) == 0) continue;
    auto copy = std::make_unique<uint64_t[]>((tensor.size_bytes + 7) / 8);
    std::memcpy(copy.get(), tensor.data, tensor.size_bytes);
    tensor.data = copy.get();
    aligned_copies_.push_back(std::move(copy));
  }
}

absl::StatusOr<Checkpoint> Checkpoint::Open(std::string_view model_dir) {
  Checkpoint checkpoint;
  checkpoint.path_ = JoinPath(model_dir, "model.safetensors");
  if (PathExists(checkpoint.path_)) {
    ASSIGN_OR_RETURN(auto file, SafetensorsFile::Open(checkpoint.path_));
    for (const auto& [name, tensor] : file->tensors()) checkpoint.tensors_.emplace(name, &tensor);
    checkpoint.files_.push_back(std::move(file));
    return checkpoint;
  }
  checkpoint.path_ = JoinPath(model_dir, "model.safetensors.index.json");
  if (!PathExists(checkpoint.path_)) {
    return FileError(model_dir, "holds neither model.safetensors nor model.safetensors.index.json");
  }
  RETURN_IF_ERROR(checkpoint.OpenShards(model_dir));
  return checkpoint;
}

absl::Status Checkpoint::OpenShards(std::string_view model_dir) {
  ASSIGN_OR_RETURN(const std::string text, ReadFile(path_, kMaxSafetensorsHeaderBytes));
  ASSIGN_OR_RETURN(const Json json, ParseObject(path_, "index", text));
  const auto weight_map = json.find("weight_map");
  if (weight_map == json.end() || !weight_map->is_object()) {
    return FileError(path_, "weight_map is not an object");
  }
  std::map<std::string, SafetensorsFile*> shards;
  for (const auto& [name, shard] : weight_map->items()) {
    const std::string file_name = shard.is_string() ? shard.get<std::string>() : "";
    // A shard lies in the model directory itself.
    if (file_name.empty() || file_name.find('/') != std::string::npos ||
        file_name.find('\0') != std::string::npos) {
      return FileError(path_, absl::StrCat("weight_map of '", name, "' is not a file name"));
    }
    auto found = shards.find(file_name);
    if (found == shards.end()) {
      if (shards.size() >= static_cast<size_t>(kMaxCheckpointShards)) {
        return FileError(path_, absl::StrCat("names more than ", kMaxCheckpointShards, " shards"));
      }
      ASSIGN_OR_RETURN(auto file, SafetensorsFile::Open(JoinPath(model_dir, file_name)));
      found = shards.emplace(file_name, file.get()).first;
      files_.push_back(std::move(file));
    }
    const auto tensor = found->second->tensors().find(name);
    if (tensor == found->second->tensors().end()) {
      return FileError(JoinPath(model_dir, file_name),
                       absl::StrCat("lacks tensor '", name, "', which the index places in it"));
    }
    tensors_.emplace(name, &tensor->second);
  }
  return absl::OkStatus();
}

const Tensor* Checkpoint::Find(std::string_view name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : found->second;
}

}  // namespace selfsame
