#include "kernels/cuda/gemm_plan_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/errors.h"
#include "kernels/cuda/split_sum.h"
#include "kernels/cuda/stream_gemm.h"
#include "nlohmann/json.hpp"

namespace selfsame::cuda {
namespace {

using Json = nlohmann::json;

// A file of an earlier version counts as empty, so that its plans are measured anew.
constexpr int kVersion = 3;
constexpr char kStreamPrefix[] = "stream-";
// Writers at a time, and files that a writer left behind when it was killed.
constexpr int kMaxTemporaryFiles = 1000;

// "stream-N", or the bytes of cuBLASLt's descriptor.
std::string ToText(const GemmAlgorithm& chosen) {
  if (chosen.stream_config >= 0) return absl::StrCat(kStreamPrefix, chosen.stream_config);
  const cublasLtMatmulAlgo_t& algorithm = chosen.blas;
  return absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(&algorithm), sizeof(algorithm)));
}

bool FromText(const std::string& hex, GemmAlgorithm& parsed) {
  absl::string_view text = hex;
  if (absl::ConsumePrefix(&text, kStreamPrefix)) {
    return absl::SimpleAtoi(text, &parsed.stream_config) && parsed.stream_config >= 0 &&
           parsed.stream_config < kStreamGemmConfigs;
  }
  cublasLtMatmulAlgo_t& algorithm = parsed.blas;
  if (hex.size() != 2 * sizeof(algorithm) ||
      hex.find_first_not_of("0123456789abcdef") != std::string::npos) {
    return false;
  }
  const std::string bytes = absl::HexStringToBytes(hex);
  std::memcpy(&algorithm, bytes.data(), sizeof(algorithm));
  return true;
}

Json ToJson(const GemmPlanKey& key) {
  const bool is_fast = key.options.schedule == Schedule::kFast;
  return {{"scope", key.scope},
          {"n", key.shape.n},
          {"k", key.shape.k},
          {"output", key.shape.output == GemmOutput::kFloat ? "float" : "bf16"},
          {"bias", key.shape.has_bias},
          {"schedule", is_fast ? "fast" : "canonical"},
          {"class_slack", is_fast ? key.options.class_slack : 0.0},
          {"rungs", key.options.rungs},
          {"rule", key.rule}};
}

// An empty file object where there is no file, or an older one.
absl::StatusOr<Json> ReadFile(const std::string& path) {
  Json empty = {{"version", kVersion}, {"entries", Json::array()}};
  std::ifstream stream(path);
  if (!stream) return empty;
  Json file = Json::parse(stream, nullptr, /*allow_exceptions=*/false);
  const bool has_version =
      file.is_object() && file.contains("version") && file["version"].is_number_integer();
  if (has_version && file["version"] >= 1 && file["version"] < kVersion) return empty;
  if (!has_version || file["version"] != kVersion || !file.contains("entries") ||
      !file["entries"].is_array()) {
    return FileError(path, absl::StrCat("is not a GEMM plan file of version ", kVersion,
                                        "; delete it to measure anew"));
  }
  return file;
}

bool HasKey(const Json& entry, const Json& key) {
  return entry.is_object() && entry.contains("key") && entry["key"] == key;
}

std::optional<std::vector<GemmPlan>> ParsePlans(const Json& entry) {
  if (!entry.contains("plans") || !entry["plans"].is_array()) return std::nullopt;
  std::vector<GemmPlan> plans;
  for (const Json& item : entry["plans"]) {
    GemmPlan plan;
    const bool is_complete =
        item.is_object() && item.contains("rows") && item["rows"].is_number_integer() &&
        item.contains("algorithm") && item["algorithm"].is_string() && item.contains("splits") &&
        item["splits"].is_number_integer() && item.contains("in_class") &&
        item["in_class"].is_boolean() && item.contains("time_us") && item["time_us"].is_number() &&
        item.contains("best_time_us") && item["best_time_us"].is_number();
    if (!is_complete || !FromText(item["algorithm"].get<std::string>(), plan.algorithm)) {
      return std::nullopt;
    }
    plan.rows = item["rows"].get<int32_t>();
    plan.algorithm.splits = item["splits"].get<int32_t>();
    if (plan.algorithm.splits < 1 || plan.algorithm.splits > kMaxSplits) return std::nullopt;
    plan.is_in_class = item["in_class"].get<bool>();
    plan.time_us = item["time_us"].get<float>();
    plan.best_time_us = item["best_time_us"].get<float>();
    if (plan.rows < 1 || (!plans.empty() && plan.rows <= plans.back().rows)) return std::nullopt;
    plans.push_back(plan);
  }
  return plans;
}

Json ToJson(const std::vector<GemmPlan>& plans) {
  Json items = Json::array();
  for (const GemmPlan& plan : plans) {
    items.push_back({{"rows", plan.rows},
                     {"algorithm", ToText(plan.algorithm)},
                     {"splits", plan.algorithm.splits},
                     {"in_class", plan.is_in_class},
                     {"time_us", plan.time_us},
                     {"best_time_us", plan.best_time_us}});
  }
  return items;
}

// Makes an empty file beside `path` and gives its name; nothing when that fails. A process id in
// the name would not do: in containers that share the folder every process may have the same.
std::optional<std::string> CreateTemporary(const std::string& path) {
  for (int i = 0; i < kMaxTemporaryFiles; ++i) {
    std::string name = absl::StrCat(path, ".", i);
    const int file = open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (file >= 0) {
      close(file);
      return name;
    }
    if (errno != EEXIST) break;
  }
  return std::nullopt;
}

absl::Status CannotBeWritten(const std::string& path) {
  return FileError(path, "cannot be written");
}

}  // namespace

absl::StatusOr<std::optional<std::vector<GemmPlan>>> LoadPlans(const std::string& path,
                                                               const GemmPlanKey& key) {
  ASSIGN_OR_RETURN(const Json file, ReadFile(path));
  const Json wanted = ToJson(key);
  for (const Json& entry : file["entries"]) {
    if (!HasKey(entry, wanted)) continue;
    std::optional<std::vector<GemmPlan>> plans = ParsePlans(entry);
    if (!plans.has_value()) {
      return FileError(
          path, absl::StrCat("has a malformed entry for n = ", key.shape.n, ", k = ", key.shape.k));
    }
    return plans;
  }
  return std::optional<std::vector<GemmPlan>>();
}

absl::Status SavePlans(const std::string& path, const GemmPlanKey& key,
                       const std::vector<GemmPlan>& plans) {
  ASSIGN_OR_RETURN(Json file, ReadFile(path));
  const Json wanted = ToJson(key);
  Json entries = Json::array();
  for (const Json& entry : file["entries"]) {
    if (!HasKey(entry, wanted)) entries.push_back(entry);
  }
  entries.push_back({{"key", wanted}, {"plans", ToJson(plans)}});
  file["entries"] = std::move(entries);
  const std::optional<std::string> temporary = CreateTemporary(path);
  if (!temporary.has_value()) return CannotBeWritten(path);
  std::ofstream stream(*temporary, std::ios::trunc);
  stream << file.dump(1) << '\n';
  stream.close();
  if (!stream || std::rename(temporary->c_str(), path.c_str()) != 0) {
    static_cast<void>(std::remove(temporary->c_str()));
    return CannotBeWritten(path);
  }
  return absl::OkStatus();
}

}  // namespace selfsame::cuda
