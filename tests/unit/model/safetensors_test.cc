#include "common/model/safetensors.h"

#include <sys/stat.h>

#include <cmath>
#include <cstring>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/bfloat16.h"
#include "kernels/float16.h"
#include "nlohmann/json.hpp"
#include "tests/unit/model/model_directory.h"

namespace selfsame {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TestTensors SomeTensors() {
  return {{"a", {"BF16", {2, 3}, Encode("BF16", {1, 2, 3, 4, 5, 6})}},
          {"b", {"F32", {3}, Encode("F32", {0.5f, -1.0f, 1e30f})}},
          {"c", {"F16", {1, 2}, Encode("F16", {1.5f, -0.25f})}},
          {"empty", {"F32", {0, 4}, ""}},
          {"scalar", {"I64", {}, std::string(8, '\1')}}};
}

class SafetensorsTest : public ::testing::Test {
 protected:
  absl::StatusOr<std::unique_ptr<SafetensorsFile>> Open(const std::string& bytes) {
    directory_.Write("model.safetensors", bytes);
    return SafetensorsFile::Open(directory_.File("model.safetensors"));
  }
  void ExpectError(const std::string& bytes, const std::string& message) {
    const auto file = Open(bytes);
    ASSERT_FALSE(file.ok()) << "expected: " << message;
    EXPECT_EQ(file.status().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(file.status().message()),
                AllOf(HasSubstr(directory_.File("model.safetensors")), HasSubstr(message)));
  }
  // One entry named "t" whose header is `entry`, in a file with 16 data bytes.
  void ExpectEntryError(const std::string& entry, const std::string& message) {
    SCOPED_TRACE(entry);
    ExpectError(RawSafetensors("{\"t\": " + entry + "}", std::string(16, '\0')), message);
  }

  TempDirectory directory_;
};

TEST_F(SafetensorsTest, ReadsTensorsOfEveryType) {
  const auto file = Open(SafetensorsBytes(SomeTensors()));
  ASSERT_TRUE(file.ok()) << file.status();
  const auto& tensors = (*file)->tensors();
  ASSERT_EQ(tensors.size(), 5u);
  const Tensor& a = tensors.at("a");
  EXPECT_EQ(a.dtype, DType::kBFloat16);
  EXPECT_THAT(a.shape, ElementsAre(2, 3));
  EXPECT_EQ(ToFloat(static_cast<const BFloat16*>(a.data)[5]), 6.0f);
  EXPECT_EQ(static_cast<const float*>(tensors.at("b").data)[2], 1e30f);
  EXPECT_EQ(HalfToFloat(static_cast<const uint16_t*>(tensors.at("c").data)[1]), -0.25f);
  EXPECT_EQ(tensors.at("empty").size_bytes, 0u);
  // A type nobody computes with is carried, not rejected.
  EXPECT_FALSE(tensors.at("scalar").dtype.has_value());
  EXPECT_EQ(tensors.at("scalar").dtype_name, "I64");
}

TEST_F(SafetensorsTest, AlignsTensorsOfFilesWithOddHeaders) {
  for (int padding = 0; padding < 8; ++padding) {
    const auto file = Open(SafetensorsBytes(SomeTensors(), padding));
    ASSERT_TRUE(file.ok()) << file.status();
    for (const auto& [name, tensor] : (*file)->tensors()) {
      if (!tensor.dtype.has_value()) continue;
      EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor.data) % DTypeSize(*tensor.dtype), 0u) << name;
      EXPECT_EQ(std::string(static_cast<const char*>(tensor.data), tensor.size_bytes),
                SomeTensors().at(name).bytes);
    }
  }
}

TEST_F(SafetensorsTest, EveryTruncationIsAnError) {
  const std::string bytes = SafetensorsBytes(SomeTensors());
  for (size_t size = 0; size < bytes.size(); ++size) {
    const auto file = Open(bytes.substr(0, size));
    ASSERT_FALSE(file.ok()) << size;
    EXPECT_EQ(file.status().code(), absl::StatusCode::kFailedPrecondition);
  }
  ExpectError(bytes + "x", "after its last tensor");
}

// Any byte of the header changed to anything must give an error or a file that is still within
// bounds; the sanitizer build watches the reads.
TEST_F(SafetensorsTest, CorruptHeadersNeverReachOutOfTheFile) {
  const std::string bytes = SafetensorsBytes(SomeTensors());
  const size_t header_end = bytes.size() - 12 - 12 - 4 - 8;
  for (size_t i = 0; i < header_end; ++i) {
    for (const char value : {'\0', '9', '"', '{', ',', '\xff'}) {
      std::string corrupt = bytes;
      corrupt[i] = value;
      const auto file = Open(corrupt);
      if (!file.ok()) continue;
      unsigned sum = 0;
      for (const auto& [name, tensor] : (*file)->tensors()) {
        const auto* data = static_cast<const unsigned char*>(tensor.data);
        for (size_t j = 0; j < tensor.size_bytes; ++j) sum += data[j];
      }
      EXPECT_LT(sum, 255u * bytes.size());
    }
  }
}

TEST_F(SafetensorsTest, RejectsBadHeaders) {
  ExpectError(std::string(8, '\xff') + "{}", "the limit is");
  ExpectError(std::string("\xe8\x03\0\0\0\0\0\0{}", 10), "header length is 1000");
  ExpectError(RawSafetensors("", ""), "header is not a JSON object");
  ExpectError(RawSafetensors("[]", ""), "header is not a JSON object");
  ExpectError(RawSafetensors("{\"t\": ", ""), "header is not a JSON object");
  ExpectError(RawSafetensors(std::string(100000, '['), ""), "header is not a JSON object");
  ExpectError(RawSafetensors(R"({"t": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]},
                                 "t": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}})",
                             "x"),
              "names the same entry twice");
}

TEST_F(SafetensorsTest, RejectsBadEntries) {
  ExpectEntryError("3", "not an object");
  ExpectEntryError(R"({"shape": [8], "data_offsets": [0, 16]})", "dtype");
  ExpectEntryError(R"({"dtype": 3, "shape": [8], "data_offsets": [0, 16]})", "dtype");
  ExpectEntryError(R"({"dtype": "F16", "data_offsets": [0, 16]})", "shape");
  ExpectEntryError(R"({"dtype": "F16", "shape": [-8], "data_offsets": [0, 16]})", "shape");
  ExpectEntryError(R"({"dtype": "F16", "shape": [8.0], "data_offsets": [0, 16]})", "shape");
  ExpectEntryError(R"({"dtype": "F16", "shape": [8]})", "data_offsets");
  ExpectEntryError(R"({"dtype": "F16", "shape": [8], "data_offsets": [0]})", "data_offsets");
  ExpectEntryError(R"({"dtype": "F16", "shape": [8], "data_offsets": [16, 0]})", "data_offsets");
  ExpectEntryError(R"({"dtype": "F16", "shape": [8], "data_offsets": [-16, 0]})", "data_offsets");
  ExpectEntryError(R"({"dtype": "F16", "shape": [16], "data_offsets": [0, 32]})", "truncated");
  ExpectEntryError(R"({"dtype": "F16", "shape": [8], "data_offsets": [0, 18446744073709551615]})",
                   "data_offsets");
  ExpectEntryError(R"({"dtype": "F16", "shape": [7], "data_offsets": [0, 16]})", "do not agree");
  ExpectEntryError(R"({"dtype": "F32", "shape": [8], "data_offsets": [0, 16]})", "do not agree");
  // 2 * 2^62 * 2 wraps to zero in 64 bits.
  ExpectEntryError(R"({"dtype": "F16", "shape": [4611686018427387904, 2], "data_offsets": [0, 0]})",
                   "do not agree");
}

TEST_F(SafetensorsTest, RejectsHolesAndOverlap) {
  const auto two = [](const std::string& first, const std::string& second) {
    return RawSafetensors(R"({"s": {"dtype": "U8", "shape": [8], "data_offsets": )" + first +
                              R"(}, "t": {"dtype": "U8", "shape": [8], "data_offsets": )" + second +
                              "}}",
                          std::string(16, '\0'));
  };
  EXPECT_TRUE(Open(two("[8, 16]", "[0, 8]")).ok());
  ExpectError(two("[0, 8]", "[4, 12]"), "begins at data byte 4");
  ExpectError(two("[0, 8]", "[0, 8]"), "begins at data byte 0");
  ExpectError(two("[1, 9]", "[9, 17]"), "truncated");
  ExpectError(RawSafetensors(R"({"s": {"dtype": "U8", "shape": [8], "data_offsets": [8, 16]}})",
                             std::string(16, '\0')),
              "begins at data byte 8");
}

TEST_F(SafetensorsTest, RejectsWhatIsNotARegularFile) {
  EXPECT_THAT(std::string(SafetensorsFile::Open(directory_.File("none")).status().message()),
              HasSubstr("No such file"));
  EXPECT_THAT(std::string(SafetensorsFile::Open(directory_.path()).status().message()),
              HasSubstr("not a regular file"));
  ASSERT_EQ(::mkfifo(directory_.File("pipe").c_str(), 0600), 0);
  EXPECT_THAT(std::string(SafetensorsFile::Open(directory_.File("pipe")).status().message()),
              HasSubstr("not a regular file"));
}

class CheckpointTest : public SafetensorsTest {
 protected:
  void WriteIndex(const nlohmann::json& weight_map) {
    directory_.Write(
        "model.safetensors.index.json",
        nlohmann::json{{"metadata", {{"total_size", 1}}}, {"weight_map", weight_map}}.dump());
  }
  void ExpectOpenError(const std::string& message) {
    const auto checkpoint = Checkpoint::Open(directory_.path());
    ASSERT_FALSE(checkpoint.ok()) << "expected: " << message;
    EXPECT_EQ(checkpoint.status().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(checkpoint.status().message()), HasSubstr(message));
  }
};

TEST_F(CheckpointTest, ReadsShards) {
  TestTensors first = SomeTensors();
  TestTensors second;
  second["b"] = first["b"];
  first.erase("b");
  directory_.Write("model-1.safetensors", SafetensorsBytes(first));
  directory_.Write("model-2.safetensors", SafetensorsBytes(second));
  WriteIndex({{"a", "model-1.safetensors"}, {"b", "model-2.safetensors"}});
  const auto checkpoint = Checkpoint::Open(directory_.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  ASSERT_NE(checkpoint->Find("b"), nullptr);
  EXPECT_EQ(static_cast<const float*>(checkpoint->Find("b")->data)[0], 0.5f);
  EXPECT_EQ(checkpoint->Find("b")->path, directory_.File("model-2.safetensors"));
  EXPECT_NE(checkpoint->Find("a"), nullptr);
  // In a shard, but not in the index.
  EXPECT_EQ(checkpoint->Find("c"), nullptr);
}

TEST_F(CheckpointTest, ReportsWhatIsMissing) {
  ExpectOpenError("holds neither");
  WriteIndex({{"a", "model-1.safetensors"}});
  ExpectOpenError(directory_.File("model-1.safetensors") + ": No such file");
  directory_.Write("model-1.safetensors", SafetensorsBytes({{"x", {"U8", {1}, "x"}}}));
  ExpectOpenError("lacks tensor 'a'");
}

TEST_F(CheckpointTest, RejectsBadIndexes) {
  for (const char* name : {"../model.safetensors", "/etc/passwd", "", "a/b"}) {
    WriteIndex({{"a", name}});
    ExpectOpenError("is not a file name");
  }
  WriteIndex({{"a", 3}});
  ExpectOpenError("is not a file name");
  WriteIndex(3);
  ExpectOpenError("weight_map is not an object");
  directory_.Write("model.safetensors.index.json", "{");
  ExpectOpenError("index is not a JSON object");
}

TEST(HalfToFloatTest, IsExactForEveryValue) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const int exponent = (bits >> 10) & 31;
    const int mantissa = bits & 1023;
    const float value = HalfToFloat(static_cast<uint16_t>(bits));
    if (exponent == 31 && mantissa != 0) {
      EXPECT_TRUE(std::isnan(value)) << bits;
      continue;
    }
    double expected =
        exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
    if (exponent == 31) expected = INFINITY;
    EXPECT_EQ(std::fabs(value), expected) << bits;
    EXPECT_EQ(std::signbit(value), (bits & 0x8000) != 0) << bits;
  }
}

}  // namespace
}  // namespace selfsame
