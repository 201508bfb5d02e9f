#include <gtest/gtest.h>

#include <cstdint>

#include "tests/sim/simulation.h"

namespace selfsame::sim {
namespace {

constexpr uint64_t kSeeds = 500;

TEST(SimulationTest, NoSeedBreaksAnInvariantAndEveryCaseHappens) {
  Counts counts;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    const SimulationResult result = RunSimulation({.seed = seed});
    EXPECT_EQ(result.failure, "") << "replay: simulate --seed=" << seed;
    counts.Add(result.counts);
  }
  RecordProperty("counts", counts.ToString());
  EXPECT_GT(counts.deterministic_completed, 1000) << counts.ToString();
  EXPECT_GT(counts.completed - counts.deterministic_completed, 500) << counts.ToString();
  EXPECT_GT(counts.rollbacks, 1000) << counts.ToString();
  EXPECT_GT(counts.evictions, 100) << counts.ToString();
  EXPECT_GT(counts.preemptions, 100) << counts.ToString();
  EXPECT_GT(counts.prefix_hits, 5000) << counts.ToString();
  EXPECT_GT(counts.verifier_prefix_hits, 5000) << counts.ToString();
  EXPECT_GT(counts.sessions, counts.deterministic_completed + 100) << counts.ToString();
  EXPECT_GT(counts.garbage, 20) << counts.ToString();
  EXPECT_GT(counts.mutes, 50) << counts.ToString();
  EXPECT_GT(counts.crashes, 50) << counts.ToString();
  EXPECT_GT(counts.drains, 50) << counts.ToString();
  EXPECT_GT(counts.restarts, 10) << counts.ToString();
  EXPECT_GT(counts.rogue_messages, 100) << counts.ToString();
  EXPECT_GT(counts.candidates, 5000) << counts.ToString();
  EXPECT_GT(counts.retracts, 500) << counts.ToString();
  EXPECT_GT(counts.continuations, 20) << counts.ToString();
  EXPECT_GT(counts.resumed_completed, 200) << counts.ToString();
}

TEST(SimulationTest, TheSameSeedGivesTheSameTrace) {
  for (uint64_t seed = 1; seed <= kSeeds; seed += 17) {
    EXPECT_EQ(RunSimulation({.seed = seed}).trace_hash, RunSimulation({.seed = seed}).trace_hash)
        << "seed " << seed;
  }
  EXPECT_NE(RunSimulation({.seed = 1}).trace_hash, RunSimulation({.seed = 2}).trace_hash);
}

// Without rollback wrong tokens are committed; checks that did not notice would be worth nothing.
TEST(SimulationTest, AVerifierThatCommitsEverythingIsFoundOut) {
  int found = 0;
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    const SimulationResult result = RunSimulation({.seed = seed, .commits_everything = true});
    if (result.failure.find("is not the canonical one") != std::string::npos) ++found;
  }
  EXPECT_GT(found, 25);
}

}  // namespace
}  // namespace selfsame::sim
