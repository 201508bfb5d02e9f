#include "tests/unit/verifier/proposer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

namespace selfsame::verifier {

std::vector<Window> Proposer::OnVerdict(const Verdict& verdict) {
  EXPECT_EQ(verdict.session_id, opening_.session_id);
  if (verdict.window_id == 0) {
    EXPECT_TRUE(in_flight_.empty() && next_window_id_ == 1);
    EXPECT_EQ(verdict.outcome, Outcome::kCommit);
    cached_tokens_ = verdict.cached_tokens;
    committed_.token_ids = opening_.committed_token_ids;
    committed_.logprobs.assign(
        answer_.logprobs.begin(),
        answer_.logprobs.begin() + static_cast<int64_t>(opening_.committed_token_ids.size()));
    if (!answer_.top_logprobs.empty()) {
      committed_.top_logprobs.assign(
          answer_.top_logprobs.begin(),
          answer_.top_logprobs.begin() + static_cast<int64_t>(opening_.committed_token_ids.size()));
    }
    committed_.prompt_logprobs = verdict.prompt_logprobs;
    Commit(verdict, {verdict.canonical_token.value()});
    proposed_ = committed_.token_ids.size();
    return Submit();
  }
  if (in_flight_.empty() || in_flight_.front().window_id != verdict.window_id) {
    ADD_FAILURE() << "a verdict out of order: window " << verdict.window_id;
    return {};
  }
  const InFlight window = std::move(in_flight_.front());
  in_flight_.erase(in_flight_.begin());
  switch (verdict.outcome) {
    case Outcome::kCommit: {
      EXPECT_EQ(verdict.epoch, epoch_);
      EXPECT_EQ(window.epoch, epoch_);
      EXPECT_TRUE(verdict.end != End::kNone || verdict.logprobs.size() == window.candidates.size());
      const auto count = static_cast<int64_t>(verdict.logprobs.size());
      Commit(verdict, {window.candidates.begin(), window.candidates.begin() + count});
      break;
    }
    case Outcome::kRollback: {
      EXPECT_EQ(verdict.epoch, epoch_ + 1);
      std::vector<int32_t> token_ids(
          window.candidates.begin(),
          window.candidates.begin() + static_cast<int64_t>(verdict.logprobs.size()));
      EXPECT_NE(token_ids.back(), verdict.canonical_token);
      token_ids.back() = verdict.canonical_token.value();
      Commit(verdict, token_ids);
      epoch_ = verdict.epoch;
      proposed_ = committed_.token_ids.size();
      ++rollbacks_;
      break;
    }
    case Outcome::kDiscarded:
      EXPECT_TRUE(window.epoch < epoch_ || is_done());
      EXPECT_EQ(verdict.end, End::kNone);
      break;
  }
  return is_done() ? std::vector<Window>() : Submit();
}

void Proposer::Commit(const Verdict& verdict, const std::vector<int32_t>& token_ids) {
  EXPECT_FALSE(is_done()) << "a commit after the end";
  EXPECT_EQ(verdict.logprobs.size(), token_ids.size());
  committed_.token_ids.insert(committed_.token_ids.end(), token_ids.begin(), token_ids.end());
  committed_.logprobs.insert(committed_.logprobs.end(), verdict.logprobs.begin(),
                             verdict.logprobs.end());
  committed_.top_logprobs.insert(committed_.top_logprobs.end(), verdict.top_logprobs.begin(),
                                 verdict.top_logprobs.end());
  EXPECT_EQ(verdict.committed_length,
            prompt_length() + static_cast<int32_t>(committed_.token_ids.size()));
  end_ = verdict.end;
}

// The answer's token, or now and then another. Past the answer anything goes.
int32_t Proposer::Propose(size_t index) {
  const bool is_wrong = random_() % 100 < static_cast<uint64_t>(options_.wrong_percent);
  if (!is_wrong && index < answer_.token_ids.size()) return answer_.token_ids[index];
  return static_cast<int32_t>(random_() % static_cast<uint64_t>(vocab_size_));
}

std::vector<Window> Proposer::Submit() {
  std::vector<Window> windows;
  while (in_flight_.size() < static_cast<size_t>(options_.max_inflight)) {
    const auto largest = static_cast<uint64_t>(options_.window_size);
    const uint64_t size = options_.has_random_cuts ? 1 + random_() % largest : largest;
    Window window{.session_id = opening_.session_id,
                  .epoch = epoch_,
                  .window_id = next_window_id_++,
                  .first_position = prompt_length() + static_cast<int32_t>(proposed_),
                  .candidate_ids = {}};
    for (uint64_t i = 0; i < size; ++i) window.candidate_ids.push_back(Propose(proposed_++));
    in_flight_.push_back({window.window_id, window.epoch, window.candidate_ids});
    windows.push_back(std::move(window));
  }
  return windows;
}

}  // namespace selfsame::verifier
