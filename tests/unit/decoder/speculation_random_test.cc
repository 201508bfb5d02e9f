// The state machine against a verifier written from the protocol's text, over thousands of seeded
// random orders of events. The committed answer must be the canonical one, whatever happened.

#include <gtest/gtest.h>

#include <deque>
#include <vector>

#include "decoder/engine/speculation.h"

namespace selfsame::decoder {
namespace {

constexpr int32_t kVocab = 12;
constexpr int32_t kStop = 3;
constexpr int32_t kPrompt = 5;

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15u + 1) {}
  uint32_t Below(uint32_t bound) {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    state_ ^= state_ << 17;
    return static_cast<uint32_t>(state_ >> 32) % bound;
  }
  bool Chance(uint32_t percent) { return Below(100) < percent; }

 private:
  uint64_t state_;
};

// The canonical token after a prefix: any function of the prefix will do.
int32_t CanonicalToken(uint64_t seed, std::span<const int32_t> prefix) {
  uint64_t hash = seed;
  for (int32_t token : prefix) hash = (hash ^ static_cast<uint64_t>(token + 1)) * 0x100000001b3u;
  hash ^= hash >> 29;
  const auto token = static_cast<int32_t>(hash % kVocab);
  // Ends must be rare enough for answers to have some length.
  return token == kStop && hash % 5 != 0 ? kStop + 1 : token;
}

End EndOf(const std::vector<int32_t>& tokens, int32_t max_tokens) {
  if (tokens.back() == kStop) return End::kStopToken;
  return static_cast<int32_t>(tokens.size()) == max_tokens ? End::kMaxTokens : End::kNone;
}

class OracleVerifier {
 public:
  OracleVerifier(uint64_t seed, int32_t max_tokens) : seed_(seed), max_tokens_(max_tokens) {}

  void Open(uint64_t session_id, std::span<const int32_t> committed) {
    session_id_ = session_id;
    tokens_.assign(committed.begin(), committed.end());
    epoch_ = 0;
    is_opening_ = true;
    windows_.clear();
  }
  void Submit(Window window) { windows_.push_back(std::move(window)); }
  bool has_work() const { return is_opening_ || !windows_.empty(); }

  Verdict Next() {
    Verdict verdict;
    verdict.session_id = session_id_;
    if (is_opening_) {
      is_opening_ = false;
      Accept(Canonical(), verdict);
      verdict.canonical_token = tokens_.back();
      verdict.epoch = epoch_;
      return Finish(verdict);
    }
    const Window window = windows_.front();
    windows_.pop_front();
    verdict.window_id = window.window_id;
    if (window.epoch != epoch_) {
      verdict.outcome = Outcome::kDiscarded;
      verdict.epoch = epoch_;
      return Finish(verdict);
    }
    EXPECT_EQ(window.first_position, kPrompt + static_cast<int32_t>(tokens_.size()));
    for (int32_t candidate : window.candidate_ids) {
      const int32_t canonical = Canonical();
      Accept(canonical, verdict);
      if (canonical != candidate) {
        verdict.outcome = Outcome::kRollback;
        verdict.canonical_token = canonical;
        ++epoch_;
        break;
      }
      if (verdict.end != End::kNone) break;
    }
    verdict.epoch = epoch_;
    return Finish(verdict);
  }

 private:
  int32_t Canonical() const { return CanonicalToken(seed_, tokens_); }
  void Accept(int32_t token, Verdict& verdict) {
    tokens_.push_back(token);
    verdict.logprobs.push_back(-static_cast<float>(tokens_.size()));
    verdict.end = EndOf(tokens_, max_tokens_);
  }
  Verdict Finish(Verdict verdict) const {
    verdict.committed_length = kPrompt + static_cast<int32_t>(tokens_.size());
    return verdict;
  }

  uint64_t seed_;
  int32_t max_tokens_;
  uint64_t session_id_ = 0;
  std::vector<int32_t> tokens_;
  uint32_t epoch_ = 0;
  bool is_opening_ = false;
  std::deque<Window> windows_;
};

class Walk {
 public:
  explicit Walk(uint64_t seed)
      : seed_(seed),
        random_(seed),
        max_tokens_(static_cast<int32_t>(1 + random_.Below(60))),
        window_size_(static_cast<int32_t>(1 + random_.Below(9))),
        accuracy_(random_.Below(101)),
        loss_percent_(random_.Below(4)),
        resumed_(Resumed()),
        answer_(resumed_),
        verifier_(seed, max_tokens_),
        speculation_({.prompt_length = kPrompt,
                      .max_tokens = max_tokens_,
                      .stop_token_ids = {kStop},
                      .vocab_size = kVocab,
                      .max_inflight_windows = static_cast<int32_t>(1 + random_.Below(4)),
                      .resumed_tokens = resumed_}) {}

  void Run() {
    for (int steps = 0; !speculation_.has_ended(); ++steps) {
      ASSERT_LT(steps, 100000);
      if (speculation_.session_id() == 0 && random_.Chance(30)) Open();
      if (speculation_.session_id() != 0 && random_.Chance(loss_percent_)) Lose();
      if (random_.Chance(60)) Decode();
      if (random_.Chance(40)) Cut();
      if (random_.Chance(40)) Verify();
      if (::testing::Test::HasFailure()) return;
    }
    CheckAnswer();
  }

 private:
  void Open() {
    speculation_.NewSession(++sessions_);
    verifier_.Open(sessions_, speculation_.committed_tokens());
  }

  void Lose() { speculation_.OnSessionLost(); }

  void Decode() {
    if (!speculation_.WantsCandidate(window_size_)) return;
    const int32_t guess = random_.Chance(accuracy_) ? CanonicalToken(seed_, speculation_.output())
                                                    : static_cast<int32_t>(random_.Below(kVocab));
    speculation_.AppendCandidate(guess, random_.Chance(2));
    ++appended_;
    state_length_ = speculation_.length() - 1;  // the pass computed all but the newest
  }

  void Cut() {
    auto window = speculation_.CutWindow(
        static_cast<int32_t>(1 + random_.Below(static_cast<uint32_t>(window_size_))));
    if (window) verifier_.Submit(*std::move(window));
  }

  void Verify() {
    if (speculation_.session_id() == 0 || !verifier_.has_work()) return;
    const int32_t candidates_before = speculation_.candidate_count();
    const std::vector<int32_t> before(speculation_.output().begin(), speculation_.output().end());
    auto effect = speculation_.ApplyVerdict(verifier_.Next());
    ASSERT_TRUE(effect.ok()) << effect.status();
    ASSERT_EQ(effect->first_position, kPrompt + static_cast<int32_t>(answer_.size()));
    answer_.insert(answer_.end(), effect->tokens.begin(), effect->tokens.end());
    logprobs_.insert(logprobs_.end(), effect->logprobs.begin(), effect->logprobs.end());
    taken_ += candidates_before - speculation_.candidate_count() - effect->dropped;
    dropped_ += effect->dropped;
    CheckDropped(before, *effect);
    if (effect->truncate_to) {
      ASSERT_EQ(*effect->truncate_to, speculation_.committed_length() - 1);
      state_length_ = std::min(state_length_, *effect->truncate_to);
    }
    // The newest known token is never in the state: it is the next row's input.
    ASSERT_LT(state_length_, speculation_.length());
  }

  // What is before the first dropped candidate stays as it was.
  void CheckDropped(const std::vector<int32_t>& before, const SpeculationEffect& effect) {
    ASSERT_EQ(effect.first_dropped.has_value(), effect.dropped > 0);
    const int32_t kept = effect.first_dropped.value_or(speculation_.length()) - kPrompt;
    ASSERT_LE(effect.first_position - kPrompt, kept);
    if (effect.dropped > 0) {
      ASSERT_EQ(kept, static_cast<int32_t>(before.size()) - effect.dropped);
    }
    const auto after = speculation_.output();
    const auto compared = std::min(static_cast<size_t>(kept), before.size());
    ASSERT_GE(after.size(), compared);
    ASSERT_TRUE(
        std::equal(before.begin(), before.begin() + static_cast<int64_t>(compared), after.begin()));
  }

  // The beginning of the answer that an earlier stream has given, in one walk of four.
  std::vector<int32_t> Resumed() {
    if (!random_.Chance(25)) return {};
    std::vector<int32_t> answer = Answer();
    answer.resize(random_.Below(static_cast<uint32_t>(answer.size())));
    return answer;
  }

  std::vector<int32_t> Answer() const {
    std::vector<int32_t> answer;
    do {
      answer.push_back(CanonicalToken(seed_, answer));
    } while (EndOf(answer, max_tokens_) == End::kNone);
    return answer;
  }

  void CheckAnswer() {
    const std::vector<int32_t> expected = Answer();
    EXPECT_EQ(answer_, expected);
    ASSERT_EQ(logprobs_.size(), expected.size() - resumed_.size());
    for (size_t i = 0; i < logprobs_.size(); ++i) {
      EXPECT_EQ(logprobs_[i], -static_cast<float>(resumed_.size() + i + 1));
    }
    EXPECT_EQ(std::vector<int32_t>(speculation_.committed_tokens().begin(),
                                   speculation_.committed_tokens().end()),
              expected);
    EXPECT_EQ(appended_, taken_ + dropped_);
    EXPECT_EQ(speculation_.counters().rolled_back_tokens, dropped_);
    EXPECT_LE(speculation_.counters().redecoded_tokens, dropped_);
  }

  uint64_t seed_;
  Random random_;
  int32_t max_tokens_;
  int32_t window_size_;
  uint32_t accuracy_;
  uint32_t loss_percent_;
  std::vector<int32_t> resumed_;
  std::vector<int32_t> answer_;  // resumed and committed
  OracleVerifier verifier_;
  Speculation speculation_;
  uint64_t sessions_ = 0;
  std::vector<float> logprobs_;
  int32_t state_length_ = 0;
  int32_t appended_ = 0;
  int32_t taken_ = 0;
  int32_t dropped_ = 0;
};

TEST(SpeculationRandomTest, TheAnswerIsCanonicalInEveryOrderOfEvents) {
  for (uint64_t seed = 1; seed <= 20000; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Walk(seed).Run();
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace selfsame::decoder
