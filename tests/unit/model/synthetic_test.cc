#include "common/model/synthetic.h"

#include <algorithm>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/model/model_source.h"
#include "common/sha256.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cpu/cpu_ops.h"
#include "tests/unit/model/fake_ops.h"

namespace selfsame {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

constexpr char kFixture[] = SELFSAME_SOURCE_DIR "/tests/data/reference/synthetic-tiny.txt";
// The model the fixture was made of.
constexpr char kFixtureModel[] = "tiny:7:gain=1.5:beta=0.3";

const std::vector<uint16_t>& BitsOf(const std::unique_ptr<PackedMatrix>& matrix) {
  return static_cast<const FakeMatrix&>(*matrix).bits();
}

std::string DigestOf(const std::unique_ptr<PackedMatrix>& matrix) {
  const std::vector<uint16_t>& bits = BitsOf(matrix);
  return Sha256().Update(bits.data(), bits.size() * sizeof(bits[0])).HexDigest();
}

ModelWeights Make(Ops& ops, const std::string& name, Rank rank = {}) {
  const auto model = ParseSyntheticModel(name);
  SELFSAME_CHECK(model.ok());
  auto weights = MakeSyntheticWeights(*model, SyntheticConfig(*model), rank, ops);
  SELFSAME_CHECK(weights.ok());
  return *std::move(weights);
}

TEST(SyntheticTest, WeightsHaveTheBitsOfTheScript) {
  std::map<std::string, std::string> expected;
  std::ifstream file(kFixture);
  for (std::string name, digest; file >> name >> digest;) expected[name] = digest;
  FakeOps ops;
  const ModelWeights weights = Make(ops, kFixtureModel);
  std::map<std::string, std::string> digests = {{"embedding", DigestOf(weights.embedding)},
                                                {"head", DigestOf(weights.head)}};
  for (size_t i = 0; i < weights.layers.size(); ++i) {
    const LayerWeights& layer = weights.layers[i];
    digests[absl::StrCat(i, ".qkv")] = DigestOf(layer.qkv);
    digests[absl::StrCat(i, ".output")] = DigestOf(layer.output);
    digests[absl::StrCat(i, ".gate_up")] = DigestOf(layer.gate_up);
    digests[absl::StrCat(i, ".down")] = DigestOf(layer.down);
  }
  EXPECT_EQ(digests, expected);
  EXPECT_EQ(digests.size(), 18u);
}

TEST(SyntheticTest, SpecialTokensHaveNoLogitAndOthersDo) {
  FakeOps ops;
  const ModelWeights weights = Make(ops, kFixtureModel);
  const std::vector<uint16_t>& bits = BitsOf(weights.head);
  const int64_t hidden = weights.head->k();
  const std::vector<uint16_t> special(bits.begin() + 500 * hidden, bits.end());
  EXPECT_EQ(special.size(), static_cast<size_t>(12 * hidden));
  EXPECT_THAT(special, Each(0));
  EXPECT_GT(std::count_if(bits.begin(), bits.begin() + hidden, [](int b) { return b != 0; }),
            hidden * 9 / 10);
}

TEST(SyntheticTest, RanksHoldSlicesOfTheSameTensors) {
  FakeOps ops;
  const ModelWeights whole = Make(ops, "tiny:3");
  const ModelWeights second = Make(ops, "tiny:3", {.index = 1, .count = 2});
  const std::vector<uint16_t>& all = BitsOf(whole.layers[1].down);
  const std::vector<uint16_t>& half = BitsOf(second.layers[1].down);
  const auto k = static_cast<size_t>(second.layers[1].down->k());
  EXPECT_EQ(second.layers[1].down->k() * 2, whole.layers[1].down->k());
  for (size_t i = 0; i < half.size(); ++i) {
    ASSERT_EQ(half[i], all[i / k * 2 * k + k + i % k]);
  }
  // q, k and v each give their second half of rows.
  const std::vector<uint16_t>& qkv = BitsOf(whole.layers[1].qkv);
  const std::vector<uint16_t>& qkv_half = BitsOf(second.layers[1].qkv);
  EXPECT_EQ(std::vector(qkv_half.begin(), qkv_half.begin() + 128 * 256),
            std::vector(qkv.begin() + 128 * 256, qkv.begin() + 256 * 256));
}

TEST(SyntheticTest, SeedAndFactorsAreInTheDigest) {
  FakeOps ops;
  const std::string digest = Make(ops, "tiny:3").digest;
  EXPECT_EQ(Make(ops, "tiny:3:gain=0.5:beta=0.25").digest, digest);
  for (const char* other : {"tiny:4", "tiny:3:gain=2", "tiny:3:beta=0.5"}) {
    EXPECT_NE(Make(ops, other).digest, digest) << other;
  }
}

TEST(SyntheticTest, TheShapesAreThoseOfTheRealModels) {
  const ModelConfig llama8b = SyntheticConfig(*ParseSyntheticModel("8b:1"));
  EXPECT_EQ(llama8b.layer_count, 32);
  EXPECT_EQ(llama8b.intermediate_size, 14336);
  EXPECT_EQ(llama8b.vocab_size, 128256);
  EXPECT_EQ(llama8b.rope_scaling->factor, 8.0);
  const ModelConfig llama3b = SyntheticConfig(*ParseSyntheticModel("3b:1"));
  EXPECT_EQ(llama3b.layer_count, 28);
  EXPECT_EQ(llama3b.hidden_size, 3072);
  EXPECT_EQ(llama3b.rope_scaling->factor, 32.0);
}

TEST(SyntheticTest, WrongFormatsAreRefusedByName) {
  for (const char* text : {"synthetic:", "synthetic:tiny", "synthetic:tiny:x", "synthetic:70b:1",
                           "synthetic:tiny:1:gain", "synthetic:tiny:1:gain=-1",
                           "synthetic:tiny:1:beta=nan", "synthetic:tiny:1:delta=1", "gguf", ""}) {
    const absl::Status status = ParseModelSource("dir", text).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(status.message()), HasSubstr("--load_format")) << text;
  }
  EXPECT_THAT(std::string(ParseModelSource("", "safetensors").status().message()),
              HasSubstr("--model_dir"));
  const auto source = ParseModelSource("", "synthetic:tiny:1:beta=0.5");
  ASSERT_TRUE(source.ok());
  EXPECT_TRUE(source->has_byte_tokenizer());
  EXPECT_EQ(source->Name(), "synthetic:tiny:1:gain=0.5:beta=0.5");
}

TEST(SyntheticTest, TheCpuBackendMakesTheSameBits) {
  auto ops = CreateCpuOps({.schedule = Schedule::kCanonical, .thread_count = 2});
  ASSERT_TRUE(ops.ok());
  const SyntheticPart part = {
      .key = 5, .rows = 3, .cols = 7, .first_row = 2, .tensor_cols = 9, .scale = 0.001f};
  auto table = (*ops)->GenerateMatrix({&part, 1});
  ASSERT_TRUE(table.ok());
  const std::vector<int32_t> rows = {0, 1, 2};
  std::vector<BFloat16> out(3 * 7);
  (*ops)->BeginPass(
      {.row_count = 3, .token_ids = rows, .positions = rows, .sequences = {}, .logit_rows = {}});
  (*ops)->Embed(**table, out.data());
  ASSERT_TRUE((*ops)->EndPass().ok());
  const std::vector<BFloat16> expected = SyntheticRows({&part, 1});
  for (size_t i = 0; i < out.size(); ++i) EXPECT_EQ(out[i].bits, expected[i].bits);
}

}  // namespace
}  // namespace selfsame
