#include "common/canonical/self_test.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/canonical/gemm_probe.h"
#include "common/canonical/kv_probe.h"
#include "common/canonical/pass_rows.h"
#include "common/check.h"
#include "common/errors.h"
#include "common/kv/sequence_state.h"
#include "common/sha256.h"

namespace selfsame {
namespace {

constexpr int32_t kGuardBlock = 0;
constexpr int32_t kMaxPieces = 64;
// Three 512-key splits, the last one just begun.
constexpr int32_t kLongPrefix = 2 * 512 + kKvBlockTokens;

// A sequence whose rows are known bit by bit.
struct Probe {
  int32_t prefix_length = 0;       // a multiple of the block size
  std::vector<int32_t> token_ids;  // from prefix_length on
  int32_t window_rows = 0;         // the last rows, as which it is a window
  std::vector<float> logits;       // [length, vocab]
  KvImage kv;                      // of its own blocks

  int32_t length() const { return static_cast<int32_t>(token_ids.size()); }
  int32_t own_blocks() const { return BlocksFor(length()); }
};

// Consecutive rows of a pass: those of a probe from `first_row` on, a neighbour's (probe < 0), or a
// neighbour's whose KV is poisoned.
struct Piece {
  int probe = -1;
  int32_t first_row = 0;
  int32_t row_count = 0;
  bool is_poisoned = false;
};

struct PlacedProbe {
  int probe = 0;
  std::vector<int32_t> own_blocks;
  int32_t first_logit = 0;  // index among the pass's logit rows
  int32_t first_row = 0;    // of the probe, with logits
  int32_t logit_count = 0;
};

// What a pass of a rung consists of.
struct Composition {
  int first_piece = 0;  // of the cycle
  int32_t padding = 0;  // rows
  // Every row gives logits; else those of a probe's window, and the last of a neighbour.
  bool has_all_logits = false;
};

class SelfTest {
 public:
  SelfTest(Model& model, std::unique_ptr<KvCache> kv, std::vector<Probe> probes,
           int32_t prefix_blocks)
      : model_(model),
        cache_(model, std::move(kv), 1 + prefix_blocks),
        probes_(std::move(probes)),
        first_free_block_(1 + prefix_blocks) {
    cache_.WritePrefixBlocks();
  }

  // Fills in the probes' logits and KV, one row a pass.
  absl::Status ComputeReference(int32_t rung);
  // What is wrong at a rung; nothing when all is well.
  absl::StatusOr<std::optional<std::string>> Check(int32_t rung, const Composition& composition);
  std::string GoldenDigest() const;

 private:
  int32_t vocab_size() const { return static_cast<int32_t>(model_.config().vocab_size); }
  const int32_t* NewTable(int32_t prefix_length, int32_t own_block_count);
  std::vector<Piece> Pieces() const;
  void Place(const Piece& piece, bool has_all_logits, PassRows& rows);
  void PlaceProbe(const Piece& piece, bool has_all_logits, PassRows& rows);
  absl::Status Run(PassRows& rows, int32_t rung);
  std::optional<std::string> Compare(const PlacedProbe& placed);

  Model& model_;
  KvProbe cache_;
  std::vector<Probe> probes_;
  const int32_t first_free_block_;
  // Of the pass being built.
  int32_t next_block_ = 0;
  std::vector<std::vector<int32_t>> tables_;
  std::vector<PlacedProbe> placed_;
};

int32_t TokenId(uint64_t index, int32_t vocab_size) {
  uint64_t z = (index + 1) * 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z ^= z >> 31;
  return static_cast<int32_t>(z % static_cast<uint64_t>(vocab_size));
}

// Block table of a sequence with shared prefix blocks and blocks of its own behind them.
const int32_t* SelfTest::NewTable(int32_t prefix_length, int32_t own_block_count) {
  const int32_t prefix_blocks = prefix_length / kKvBlockTokens;
  std::vector<int32_t> table(static_cast<size_t>(prefix_blocks + own_block_count));
  std::iota(table.begin(), table.begin() + prefix_blocks, 1);
  std::iota(table.begin() + prefix_blocks, table.end(), next_block_);
  next_block_ += own_block_count;
  return tables_.emplace_back(std::move(table)).data();
}

absl::Status SelfTest::Run(PassRows& rows, int32_t rung) {
  std::vector<SampledToken> sampled(rows.sampling().size());
  const Pass pass = rows.PaddedTo(rung);
  // What counts are the bits of a pass as it will run while serving.
  for (int32_t i = 1; i < model_.ops().runs_to_settle(); ++i) {
    RETURN_IF_ERROR(model_.Run(pass, cache_.kv(), rows.sampling(), sampled));
  }
  return model_.Run(pass, cache_.kv(), rows.sampling(), sampled);
}

absl::Status SelfTest::ComputeReference(int32_t rung) {
  next_block_ = first_free_block_;
  tables_.clear();
  cache_.Poison();
  for (Probe& probe : probes_) {
    const int32_t* table = NewTable(probe.prefix_length, probe.own_blocks());
    for (int32_t i = 0; i < probe.length(); ++i) {
      PassRows rows;
      rows.BeginSequence(probe.prefix_length + i, table);
      rows.AddLogitRow(probe.token_ids[static_cast<size_t>(i)], SampleRow{});
      RETURN_IF_ERROR(Run(rows, rung));
      const std::vector<float> logits = model_.CopyLogits(1);
      probe.logits.insert(probe.logits.end(), logits.begin(), logits.end());
    }
    if (!std::all_of(probe.logits.begin(), probe.logits.end(),
                     [](float logit) { return std::isfinite(logit); })) {
      return FailedPreconditionError("self-test: the model's logits are not finite numbers");
    }
    const std::vector<int32_t>& blocks = tables_.back();
    probe.kv = cache_.Read(std::span(blocks).last(static_cast<size_t>(probe.own_blocks())));
  }
  return absl::OkStatus();
}

// The cycle passes are made of: every probe as decode row, window and chunk, neighbours of odd
// lengths between them.
std::vector<Piece> SelfTest::Pieces() const {
  std::vector<Piece> pieces;
  int32_t neighbour_rows = 3;
  const auto add_neighbour = [&](bool is_poisoned) {
    const bool fits = !is_poisoned || model_.limits().context_limit >= kKvBlockTokens + 2;
    if (fits) {
      pieces.push_back(
          {.row_count = std::min(is_poisoned ? 2 : neighbour_rows, model_.limits().context_limit),
           .is_poisoned = is_poisoned});
    }
    neighbour_rows = neighbour_rows * 2 + 1;
  };
  const auto add_probes = [&](auto rows_of) {
    for (size_t i = 0; i < probes_.size(); ++i) {
      const int32_t rows = rows_of(probes_[i]);
      pieces.push_back({.probe = static_cast<int>(i),
                        .first_row = probes_[i].length() - rows,
                        .row_count = rows});
      add_neighbour(i == 1 && rows == 1);
    }
  };
  add_probes([](const Probe&) { return 1; });
  add_probes([](const Probe& probe) { return probe.window_rows; });
  add_probes([](const Probe& probe) { return probe.length(); });
  return pieces;
}

void SelfTest::PlaceProbe(const Piece& piece, bool has_all_logits, PassRows& rows) {
  const Probe& probe = probes_[static_cast<size_t>(piece.probe)];
  const int32_t* table = NewTable(probe.prefix_length, probe.own_blocks());
  const std::span<const int32_t> own =
      std::span(tables_.back()).last(static_cast<size_t>(probe.own_blocks()));
  cache_.Write(own, probe.kv, piece.first_row);
  const int32_t first_logit_row =
      has_all_logits ? piece.first_row
                     : std::max(piece.first_row, probe.length() - probe.window_rows);
  PlacedProbe placed{.probe = piece.probe,
                     .own_blocks = {own.begin(), own.end()},
                     .first_logit = static_cast<int32_t>(rows.sampling().size()),
                     .first_row = first_logit_row,
                     .logit_count = probe.length() - first_logit_row};
  rows.BeginSequence(probe.prefix_length + piece.first_row, table);
  for (int32_t i = piece.first_row; i < probe.length(); ++i) {
    const int32_t token_id = probe.token_ids[static_cast<size_t>(i)];
    if (i < first_logit_row) {
      rows.AddRow(token_id);
    } else {
      rows.AddLogitRow(token_id, SampleRow{});
    }
  }
  placed_.push_back(std::move(placed));
}

void SelfTest::Place(const Piece& piece, bool has_all_logits, PassRows& rows) {
  if (piece.probe >= 0) return PlaceProbe(piece, has_all_logits, rows);
  const auto seed = static_cast<uint64_t>(rows.row_count()) * 1000 + 77;
  if (piece.is_poisoned) {
    NewTable(0, 1);
    tables_.back().insert(tables_.back().begin(), kGuardBlock);
    rows.BeginSequence(kKvBlockTokens, tables_.back().data());
  } else {
    rows.BeginSequence(0, NewTable(0, BlocksFor(piece.row_count)));
  }
  for (int32_t i = 0; i < piece.row_count; ++i) {
    const int32_t token_id = TokenId(seed + static_cast<uint64_t>(i), vocab_size());
    if (has_all_logits || (i + 1 == piece.row_count && !piece.is_poisoned)) {
      rows.AddLogitRow(token_id, SampleRow{});
    } else {
      rows.AddRow(token_id);
    }
  }
}

absl::StatusOr<std::optional<std::string>> SelfTest::Check(int32_t rung,
                                                           const Composition& composition) {
  next_block_ = first_free_block_;
  tables_.clear();
  placed_.clear();
  cache_.Poison();
  const std::vector<Piece> cycle = Pieces();
  PassRows rows;
  size_t skipped = 0;
  for (auto i = static_cast<size_t>(composition.first_piece);
       skipped < cycle.size() && tables_.size() < kMaxPieces; ++i) {
    Piece piece = cycle[i % cycle.size()];
    const int32_t room = rung - composition.padding - rows.row_count();
    // Neighbours may be cut, but leave a row for the first probe.
    if (piece.probe < 0)
      piece.row_count = std::min(piece.row_count, room - (placed_.empty() ? 1 : 0));
    if (piece.row_count <= 0 || piece.row_count > room) {
      ++skipped;
      continue;
    }
    skipped = 0;
    Place(piece, composition.has_all_logits, rows);
  }
  SELFSAME_CHECK(!placed_.empty());
  RETURN_IF_ERROR(Run(rows, rung));
  for (const PlacedProbe& placed : placed_) {
    if (auto failure = Compare(placed)) return failure;
  }
  if (!cache_.IsGuardIntact()) return std::optional<std::string>("KV of padding rows was written");
  return std::optional<std::string>();
}

std::optional<std::string> SelfTest::Compare(const PlacedProbe& placed) {
  const Probe& probe = probes_[static_cast<size_t>(placed.probe)];
  const auto vocab = static_cast<size_t>(vocab_size());
  if (!cache_.IsEqual(cache_.Read(placed.own_blocks), probe.kv, probe.own_blocks(),
                      probe.length())) {
    return "the KV of a probe has other bits";
  }
  // A probe's logits at a time: those of a whole pass would take hundreds of megabytes.
  const std::vector<float> logits = model_.CopyLogits(placed.logit_count, placed.first_logit);
  const float* expected = &probe.logits[static_cast<size_t>(placed.first_row) * vocab];
  if (std::memcmp(expected, logits.data(), logits.size() * sizeof(float)) != 0) {
    return "a probe's logits have other bits";
  }
  return std::nullopt;
}

std::string SelfTest::GoldenDigest() const {
  Sha256 digest;
  for (const Probe& probe : probes_) {
    digest.Update(probe.logits.data(), probe.logits.size() * sizeof(float));
    digest.Update(probe.kv.data(), probe.kv.size() * sizeof(BFloat16));
  }
  return digest.HexDigest();
}

std::vector<Probe> MakeProbes(const Model& model) {
  const auto vocab_size = static_cast<int32_t>(model.config().vocab_size);
  const int32_t context_limit = model.limits().context_limit;
  std::vector<Probe> probes;
  const auto add = [&](int32_t prefix_length, int32_t length, int32_t window_rows) {
    Probe probe{.prefix_length = prefix_length,
                .token_ids = {},
                .window_rows = std::min(window_rows, length),
                .logits = {},
                .kv = {}};
    const auto first = static_cast<uint64_t>(prefix_length);
    for (int32_t i = 0; i < length; ++i) {
      probe.token_ids.push_back(TokenId(first + static_cast<uint64_t>(i), vocab_size));
    }
    probes.push_back(std::move(probe));
  };
  // One more row than a block holds, and one more.
  add(0, std::min(kKvBlockTokens + 2, context_limit), 5);
  constexpr int32_t kLongProbeRows = 6;
  const int32_t prefix_length =
      std::min(kLongPrefix, (context_limit - kLongProbeRows) / kKvBlockTokens * kKvBlockTokens);
  if (prefix_length > 0) add(prefix_length, kLongProbeRows, 3);
  return probes;
}

// Small rungs are cheap and are tested in several compositions, large ones in one. At each there is
// one whose rows all give logits, so that the head runs at every row count too.
absl::StatusOr<std::optional<std::string>> CheckRung(SelfTest& test, size_t index, int32_t rung) {
  const int variants = rung <= 16 ? 4 : rung <= 64 ? 2 : 1;
  for (int variant = 0; variant < variants; ++variant) {
    const bool is_padded = rung > 1 && (variant % 2 == 1 || variants == 1);
    const Composition composition{.first_piece = static_cast<int>(index) + 3 * variant,
                                  .padding = is_padded ? std::max(1, rung / 8) : 0,
                                  .has_all_logits = variant % 2 == 0};
    ASSIGN_OR_RETURN(auto failure, test.Check(rung, composition));
    if (failure) return failure;
  }
  return std::optional<std::string>();
}

}  // namespace

absl::StatusOr<SelfTestReport> RunSelfTest(Model& model, std::span<const int32_t> rungs) {
  SELFSAME_CHECK(!rungs.empty() && rungs.back() <= model.limits().max_rows &&
                 rungs.back() <= model.limits().max_logit_rows);
  std::vector<Probe> probes = MakeProbes(model);
  const int32_t prefix_blocks = probes.back().prefix_length / kKvBlockTokens;
  const int32_t block_count = 1 + prefix_blocks + BlocksFor(rungs.back()) + 2 * kMaxPieces;
  ASSIGN_OR_RETURN(auto kv, model.CreateKvCache(block_count));
  SelfTest test(model, std::move(kv), std::move(probes), prefix_blocks);
  RETURN_IF_ERROR(test.ComputeReference(rungs.front()));
  ASSIGN_OR_RETURN(const std::vector<int32_t> other_products, RungsWithOtherProducts(model, rungs));

  SelfTestReport report;
  report.golden_digest = test.GoldenDigest();
  for (size_t i = 0; i < rungs.size(); ++i) {
    if (std::binary_search(other_products.begin(), other_products.end(), rungs[i])) {
      report.failures.push_back(absl::StrCat("rung of ", rungs[i],
                                             " rows: a matrix product with cancellation has other "
                                             "bits"));
      continue;
    }
    ASSIGN_OR_RETURN(const auto failure, CheckRung(test, i, rungs[i]));
    if (failure) {
      report.failures.push_back(absl::StrCat("rung of ", rungs[i], " rows: ", *failure));
    } else {
      report.rungs.push_back(rungs[i]);
    }
  }
  // They are of the self-test's cache, which goes.
  model.ops().ForgetPasses();
  return report;
}

}  // namespace selfsame
