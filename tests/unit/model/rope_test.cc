#include "common/model/rope.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/model/fake_ops.h"

namespace selfsame {
namespace {

ModelConfig Config(int64_t head_dim, double theta, int64_t positions) {
  ModelConfig config;
  config.head_dim = head_dim;
  config.rope_theta = theta;
  config.max_position_embeddings = positions;
  return config;
}

TEST(PortableMathTest, LogAgreesWithTheLibrary) {
  for (double x = 1.0; x < 1e15; x *= 1.0173) {
    EXPECT_NEAR(internal::PortableLog(x), std::log(x), 1e-14 * std::max(1.0, std::log(x))) << x;
    EXPECT_NEAR(internal::PortableLog(1.0 / x), std::log(1.0 / x),
                1e-14 * std::max(1.0, std::log(x)))
        << x;
  }
}

TEST(PortableMathTest, ExpAgreesWithTheLibrary) {
  for (double x = -40.0; x < 40.0; x += 0.00917) {
    EXPECT_NEAR(internal::PortableExp(x) / std::exp(x), 1.0, 1e-14) << x;
  }
  EXPECT_EQ(internal::PortableExp(0.0), 1.0);
}

TEST(PortableMathTest, CosSinAgreeWithTheLibrary) {
  EXPECT_EQ(internal::PortableCosSin(0.0).cos, 1.0);
  EXPECT_EQ(internal::PortableCosSin(0.0).sin, 0.0);
  double angle = 1e-9;
  int count = 0;
  while (angle < 4194303.0) {
    const auto [cos, sin] = internal::PortableCosSin(angle);
    ASSERT_NEAR(cos, std::cos(angle), 1e-15) << angle;
    ASSERT_NEAR(sin, std::sin(angle), 1e-15) << angle;
    angle *= 1.00021;
    ++count;
  }
  EXPECT_GT(count, 100000);
  // Close to every kind of multiple of pi / 2, where reduction loses most.
  for (int64_t k = 1; k < 2670176; k += 977) {
    const double near = static_cast<double>(k) * 1.5707963267948966;
    const auto [cos, sin] = internal::PortableCosSin(near);
    ASSERT_NEAR(cos, std::cos(near), 1e-15) << k;
    ASSERT_NEAR(sin, std::sin(near), 1e-15) << k;
  }
}

TEST(RopeTest, FrequenciesArePowersOfTheta) {
  for (const double theta : {10000.0, 100000.0, 500000.0, 1e6}) {
    for (const int64_t head_dim : {2, 32, 64, 80, 128}) {
      const std::vector<double> frequencies = RopeFrequencies(Config(head_dim, theta, 16));
      ASSERT_EQ(frequencies.size(), static_cast<size_t>(head_dim / 2));
      EXPECT_EQ(frequencies[0], 1.0);
      for (int64_t i = 0; i < head_dim / 2; ++i) {
        const double expected = std::pow(theta, -2.0 * i / head_dim);
        EXPECT_NEAR(frequencies[i] / expected, 1.0, 1e-13);
      }
    }
  }
}

TEST(RopeTest, Llama3ScalingHasThreeBands) {
  ModelConfig config = Config(128, 500000.0, 131072);
  const std::vector<double> plain = RopeFrequencies(config);
  config.rope_scaling = Llama3RopeScaling{8.0, 1.0, 4.0, 8192};
  const std::vector<double> scaled = RopeFrequencies(config);
  int unchanged = 0;
  int blended = 0;
  int divided = 0;
  for (size_t i = 0; i < plain.size(); ++i) {
    const double wavelength = 2.0 * M_PI / plain[i];
    if (wavelength < 8192.0 / 4.0) {
      EXPECT_EQ(scaled[i], plain[i]);
      ++unchanged;
    } else if (wavelength > 8192.0 / 1.0) {
      EXPECT_EQ(scaled[i], plain[i] / 8.0);
      ++divided;
    } else {
      const double smooth = (8192.0 / wavelength - 1.0) / (4.0 - 1.0);
      EXPECT_NEAR(scaled[i], ((1.0 - smooth) / 8.0 + smooth) * plain[i], 1e-15);
      EXPECT_GT(scaled[i], plain[i] / 8.0);
      EXPECT_LT(scaled[i], plain[i]);
      ++blended;
    }
  }
  EXPECT_GT(unchanged, 0);
  EXPECT_GT(blended, 0);
  EXPECT_GT(divided, 0);
}

TEST(RopeTest, TableHoldsCosAndSinOfEveryPosition) {
  const ModelConfig config = Config(64, 100000.0, 8192);
  const RopeVectors vectors = BuildRopeVectors(config, 8192);
  ASSERT_EQ(vectors.cos.size(), 8192u * 32);
  ASSERT_EQ(vectors.sin.size(), 8192u * 32);
  for (const int64_t position : {0, 1, 2, 511, 512, 4095, 8191}) {
    for (int64_t i = 0; i < 32; ++i) {
      const double angle = position * std::pow(100000.0, -2.0 * i / 64);
      // The angle itself carries the rounding of a frequency, up to 1e-15 of its size.
      const double tolerance = 6e-8 + 1e-14 * angle;
      EXPECT_NEAR(vectors.cos[position * 32 + i], std::cos(angle), tolerance);
      EXPECT_NEAR(vectors.sin[position * 32 + i], std::sin(angle), tolerance);
    }
  }
}

TEST(RopeTest, ShorterTableIsAPrefix) {
  const ModelConfig config = Config(32, 10000.0, 100);
  const RopeVectors all = BuildRopeVectors(config, 100);
  const RopeVectors some = BuildRopeVectors(config, 40);
  EXPECT_TRUE(std::equal(some.cos.begin(), some.cos.end(), all.cos.begin()));
  EXPECT_TRUE(std::equal(some.sin.begin(), some.sin.end(), all.sin.begin()));
}

// The bits themselves, so that another compiler, machine or C library that changes them is noticed.
TEST(RopeTest, BitsAreTheSameEverywhere) {
  ModelConfig config = Config(64, 500000.0, 4096);
  config.rope_scaling = Llama3RopeScaling{32.0, 1.0, 4.0, 1024};
  const RopeVectors vectors = BuildRopeVectors(config, 4096);
  uint64_t hash = 14695981039346656037u;
  for (const std::vector<float>* table : {&vectors.cos, &vectors.sin}) {
    for (const float value : *table) {
      hash = (hash ^ std::bit_cast<uint32_t>(value)) * 1099511628211u;
    }
  }
  EXPECT_EQ(hash, 15017696443630764163u);
}

TEST(RopeTest, UploadsCosThenSin) {
  const ModelConfig config = Config(32, 10000.0, 100);
  FakeOps ops;
  const auto buffer = UploadRopeTable(config, 50, ops);
  ASSERT_TRUE(buffer.ok()) << buffer.status();
  const RopeTable table = RopeTableOf(**buffer, config, 50);
  const RopeVectors vectors = BuildRopeVectors(config, 50);
  EXPECT_EQ(table.max_positions, 50);
  EXPECT_TRUE(std::equal(vectors.cos.begin(), vectors.cos.end(), table.cos));
  EXPECT_TRUE(std::equal(vectors.sin.begin(), vectors.sin.end(), table.sin));

  FakeOps small(/*free_bytes=*/100);
  EXPECT_EQ(UploadRopeTable(config, 50, small).status().code(),
            absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace selfsame
