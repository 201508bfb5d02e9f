#include "decoder/engine/window_policy.h"

#include <gtest/gtest.h>

namespace selfsame::decoder {
namespace {

using std::chrono::milliseconds;

WindowOptions Options() {
  WindowOptions options;
  options.window_size = 64;
  options.first_window_size = 8;
  options.min_idle_window_size = 4;
  options.max_age = milliseconds(100);
  return options;
}

WindowQuery Query(int32_t unsubmitted) {
  WindowQuery query;
  query.unsubmitted = unsubmitted;
  query.credit = 1;
  return query;
}

TEST(AdaptiveWindowPolicyTest, WaitsWhileNothingIsDue) {
  AdaptiveWindowPolicy policy(Options());
  EXPECT_EQ(policy.Cut(Query(7)), 0);
}

TEST(AdaptiveWindowPolicyTest, CutsAFullWindow) {
  AdaptiveWindowPolicy policy(Options());
  EXPECT_EQ(policy.Cut(Query(8)), 8);
}

TEST(AdaptiveWindowPolicyTest, WindowsGrowWithEachCommitUpToTheLimit) {
  AdaptiveWindowPolicy policy(Options());
  WindowQuery query = Query(15);
  query.windows_since_rollback = 1;
  EXPECT_EQ(policy.Cut(query), 0);
  query.unsubmitted = 16;
  EXPECT_EQ(policy.Cut(query), 16);
  EXPECT_EQ(policy.FullSize(2), 32);
  query.windows_since_rollback = 1000;
  query.unsubmitted = 63;
  EXPECT_EQ(policy.Cut(query), 0);
  query.unsubmitted = 64;
  EXPECT_EQ(policy.Cut(query), 64);
}

TEST(AdaptiveWindowPolicyTest, NeverCutsMoreThanTheWindowSize) {
  AdaptiveWindowPolicy policy(Options());
  EXPECT_EQ(policy.Cut(Query(200)), 64);
}

TEST(AdaptiveWindowPolicyTest, AFirstWindowIsNoLargerThanTheWindowSize) {
  WindowOptions options = Options();
  options.window_size = 1;
  AdaptiveWindowPolicy policy(options);
  EXPECT_EQ(policy.Cut(Query(1)), 1);
  EXPECT_EQ(policy.Cut(Query(3)), 1);
}

TEST(AdaptiveWindowPolicyTest, CutsAProposedEndAtOnce) {
  AdaptiveWindowPolicy policy(Options());
  WindowQuery query = Query(1);
  query.has_proposed_end = true;
  EXPECT_EQ(policy.Cut(query), 1);
}

TEST(AdaptiveWindowPolicyTest, SettlesADoubtEarlyWhileCreditIsLeft) {
  AdaptiveWindowPolicy policy({.window_size = 16, .first_window_size = 16});
  WindowQuery query;
  query.unsubmitted = 3;
  query.credit = 2;
  query.has_doubt = true;
  EXPECT_EQ(policy.Cut(query), 3);
  query.credit = 1;
  EXPECT_EQ(policy.Cut(query), 0);
  query.unsubmitted = 16;
  EXPECT_EQ(policy.Cut(query), 16);
}

TEST(AdaptiveWindowPolicyTest, CutsOldCandidates) {
  AdaptiveWindowPolicy policy(Options());
  WindowQuery query = Query(2);
  query.oldest_age = milliseconds(99);
  EXPECT_EQ(policy.Cut(query), 0);
  query.oldest_age = milliseconds(100);
  EXPECT_EQ(policy.Cut(query), 2);
}

TEST(AdaptiveWindowPolicyTest, GivesAnIdleVerifierASmallWindow) {
  AdaptiveWindowPolicy policy(Options());
  WindowQuery query = Query(3);
  query.is_verifier_idle = true;
  EXPECT_EQ(policy.Cut(query), 0);
  query.unsubmitted = 4;
  EXPECT_EQ(policy.Cut(query), 4);
}

TEST(AdaptiveWindowPolicyTest, AlwaysCutsAPausedRequest) {
  AdaptiveWindowPolicy policy(Options());
  WindowQuery query = Query(1);
  query.is_paused = true;
  EXPECT_EQ(policy.Cut(query), 1);
}

}  // namespace
}  // namespace selfsame::decoder
