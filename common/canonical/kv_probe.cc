#include "common/canonical/kv_probe.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/check.h"

namespace selfsame {
namespace {

constexpr BFloat16 kPoison{0x7fff};  // a NaN

// Numbers within +-0.5, a function of `index` alone.
BFloat16 SmallNumber(uint64_t index) {
  uint64_t z = index * 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z ^= z >> 27;
  return ToBFloat16(static_cast<float>(static_cast<int32_t>(z >> 40 & 0xff) - 128) / 256.0f);
}

}  // namespace

KvProbe::KvProbe(Model& model, std::unique_ptr<KvCache> kv, int32_t first_free_block)
    : model_(model),
      kv_(std::move(kv)),
      first_free_block_(first_free_block),
      layer_count_(static_cast<int32_t>(model.config().layer_count)),
      head_dim_(static_cast<int32_t>(model.config().head_dim)),
      block_elements_(static_cast<size_t>(2 * model.config().kv_head_count * kKvBlockTokens *
                                          model.config().head_dim)) {
  SELFSAME_CHECK(first_free_block >= 1 && first_free_block <= kv_->block_count());
}

BFloat16* KvProbe::BlockData(int32_t layer, int32_t block) const {
  SELFSAME_CHECK(block >= 0 && block < kv_->block_count());
  return kv_->layer(layer).data + static_cast<size_t>(block) * block_elements_;
}

void KvProbe::WritePrefixBlocks() {
  std::vector<BFloat16> host(block_elements_ * static_cast<size_t>(first_free_block_));
  for (int32_t layer = 0; layer < layer_count_; ++layer) {
    for (size_t i = 0; i < host.size(); ++i) {
      host[i] = i < block_elements_ ? kPoison
                                    : SmallNumber(static_cast<uint64_t>(layer) * host.size() + i);
    }
    model_.ops().CopyToDevice(BlockData(layer, 0), host.data(), host.size() * sizeof(BFloat16));
  }
}

void KvProbe::Poison() {
  const std::vector<BFloat16> host(
      block_elements_ * static_cast<size_t>(kv_->block_count() - first_free_block_), kPoison);
  if (host.empty()) return;
  for (int32_t layer = 0; layer < layer_count_; ++layer) {
    model_.ops().CopyToDevice(BlockData(layer, first_free_block_), host.data(),
                              host.size() * sizeof(BFloat16));
  }
}

KvImage KvProbe::Read(std::span<const int32_t> blocks) const {
  KvImage image(static_cast<size_t>(layer_count_) * blocks.size() * block_elements_);
  BFloat16* to = image.data();
  for (int32_t layer = 0; layer < layer_count_; ++layer) {
    for (const int32_t block : blocks) {
      model_.ops().CopyToHost(to, BlockData(layer, block), block_elements_ * sizeof(BFloat16));
      to += block_elements_;
    }
  }
  return image;
}

void KvProbe::Write(std::span<const int32_t> blocks, const KvImage& image, int32_t slot_count) {
  SELFSAME_CHECK(image.size() ==
                 static_cast<size_t>(layer_count_) * blocks.size() * block_elements_);
  const auto head_dim = static_cast<size_t>(head_dim_);
  std::vector<BFloat16> host(block_elements_);
  const BFloat16* from = image.data();
  for (int32_t layer = 0; layer < layer_count_; ++layer) {
    int32_t slot_begin = 0;
    for (const int32_t block : blocks) {
      for (size_t i = 0; i < block_elements_; ++i) {
        const auto slot = slot_begin + static_cast<int32_t>(i / head_dim % kKvBlockTokens);
        host[i] = slot < slot_count ? from[i] : kPoison;
      }
      model_.ops().CopyToDevice(BlockData(layer, block), host.data(),
                                block_elements_ * sizeof(BFloat16));
      from += block_elements_;
      slot_begin += kKvBlockTokens;
    }
  }
}

bool KvProbe::IsEqual(const KvImage& a, const KvImage& b, int32_t block_count,
                      int32_t slot_count) const {
  SELFSAME_CHECK(a.size() == b.size());
  const auto head_dim = static_cast<size_t>(head_dim_);
  for (size_t row = 0; row * head_dim < a.size(); ++row) {
    const size_t block = row * head_dim / block_elements_ % static_cast<size_t>(block_count);
    const size_t slot = block * kKvBlockTokens + row % kKvBlockTokens;
    if (slot >= static_cast<size_t>(slot_count)) continue;
    if (std::memcmp(&a[row * head_dim], &b[row * head_dim], head_dim * sizeof(BFloat16)) != 0) {
      return false;
    }
  }
  return true;
}

bool KvProbe::IsGuardIntact() const {
  const int32_t guard = 0;
  const KvImage image = Read({&guard, 1});
  return std::all_of(image.begin(), image.end(),
                     [](BFloat16 value) { return value.bits == kPoison.bits; });
}

}  // namespace selfsame
