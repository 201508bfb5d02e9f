#include "tests/unit/decoder/canonical_verifier.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "common/check.h"
#include "common/errors.h"
#include "common/kv/sequence_state.h"
#include "tests/testing/naive_edits.h"
#include "tests/unit/decoder/engine_testing.h"

namespace selfsame::decoder {

CanonicalVerifier::CanonicalVerifier(int index, std::string fingerprint)
    : index_(index),
      fingerprint_(std::move(fingerprint)),
      model_(TinyWorld::Get().LoadCanonical()) {}

void CanonicalVerifier::Connect() {
  {
    MutexLock lock(mutex_);
    is_connected_ = true;
  }
  events_->OnVerifierUp(index_, {.fingerprint = fingerprint_,
                                 .context_limit = kTestContextLimit,
                                 .vocab_size = static_cast<int32_t>(model_->config().vocab_size),
                                 .max_window_size = max_window_size,
                                 .max_sessions = max_sessions});
}

void CanonicalVerifier::Disconnect() {
  {
    MutexLock lock(mutex_);
    is_connected_ = false;
    messages_.clear();
  }
  sessions_.clear();
  events_->OnVerifierDown(index_, UnavailableError("the stream broke"));
}

bool CanonicalVerifier::ProcessOne() {
  Message message;
  {
    MutexLock lock(mutex_);
    if (messages_.empty()) return false;
    message = std::move(messages_.front());
    messages_.pop_front();
  }
  std::visit([this](auto& m) { Process(m); }, message);
  return true;
}

void CanonicalVerifier::Push(Message message) {
  MutexLock lock(mutex_);
  if (is_connected_) messages_.push_back(std::move(message));
}

void CanonicalVerifier::OpenSession(SessionOpening opening) { Push(std::move(opening)); }
void CanonicalVerifier::SubmitWindow(Window window) { Push(std::move(window)); }
void CanonicalVerifier::CloseSession(uint64_t session_id) { Push(Close{session_id}); }
void CanonicalVerifier::Reset(absl::Status) { Push(ResetRequest{}); }

void CanonicalVerifier::Process(const ResetRequest&) {
  ++reset_count;
  Disconnect();
  Connect();
}

void CanonicalVerifier::Process(SessionOpening& opening) {
  ++opening_count;
  openings.push_back(opening);
  const uint64_t id = opening.session_id;
  if (refuse) {
    if (absl::Status status = refuse(opening_count); !status.ok()) {
      events_->OnSessionError(index_, id, status);
      return;
    }
  }
  EXPECT_EQ(opening.expected_fingerprint, fingerprint_);
  auto kv = model_->CreateKvCache(BlocksFor(kTestContextLimit));
  SELFSAME_CHECK(kv.ok());
  Session& session = sessions_[id];
  session.tokens = opening.prompt_token_ids;
  session.tokens.insert(session.tokens.end(), opening.committed_token_ids.begin(),
                        opening.committed_token_ids.end());
  session.opening = std::move(opening);
  session.kv = *std::move(kv);
  Verdict verdict;
  verdict.session_id = id;
  Accept(session, Next(session), verdict);
  verdict.canonical_token = session.tokens.back();
  verdict.prompt_logprobs = std::move(session.prompt_logprobs);
  Send(std::move(verdict));
}

void CanonicalVerifier::Process(Window& window) {
  windows.push_back(window);
  const auto it = sessions_.find(window.session_id);
  if (it == sessions_.end()) return;
  Session& session = it->second;
  EXPECT_LE(static_cast<int32_t>(window.candidate_ids.size()), max_window_size);
  Verdict verdict;
  verdict.session_id = window.session_id;
  verdict.window_id = window.window_id;
  if (window.epoch != session.epoch) {
    verdict.outcome = Outcome::kDiscarded;
    verdict.committed_length = static_cast<int32_t>(session.tokens.size());
  } else {
    EXPECT_EQ(window.first_position, static_cast<int32_t>(session.tokens.size()));
    for (int32_t candidate : window.candidate_ids) {
      SampledToken token = Next(session);
      const bool is_match = !can_roll_back || token.token_id == candidate;
      if (!can_roll_back) token.token_id = candidate;
      Accept(session, token, verdict);
      if (!is_match) {
        verdict.outcome = Outcome::kRollback;
        verdict.canonical_token = token.token_id;
        ++session.epoch;
      }
      if (!is_match || verdict.end != End::kNone) break;
    }
  }
  verdict.epoch = session.epoch;
  Send(std::move(verdict));
}

SampledToken CanonicalVerifier::Next(Session& session) {
  std::vector<int32_t> blocks(static_cast<size_t>(session.kv->block_count()));
  std::iota(blocks.begin(), blocks.end(), 0);
  SampledToken sampled;
  for (; session.kv_length < static_cast<int32_t>(session.tokens.size()); ++session.kv_length) {
    const int32_t position = session.kv_length;
    const int32_t token = session.tokens[static_cast<size_t>(position)];
    const SequenceRows rows{
        .first_row = 0, .row_count = 1, .first_position = position, .block_table = blocks.data()};
    const int32_t logit_row = 0;
    const Pass pass{.row_count = 1,
                    .token_ids = {&token, 1},
                    .positions = {&position, 1},
                    .sequences = {&rows, 1},
                    .logit_rows = {&logit_row, 1}};
    const auto output =
        session.tokens.begin() + static_cast<ptrdiff_t>(session.opening.prompt_token_ids.size());
    const auto edits = selfsame::testing::NaiveEdits(
        session.opening.logit_rules, session.opening.prompt_token_ids,
        {output, session.tokens.end()}, session.opening.stop_token_ids);
    SampleRow sampling{.temperature = session.opening.temperature,
                       .top_k = session.opening.top_k,
                       .top_p = session.opening.top_p,
                       .min_p = session.opening.min_p,
                       .seed = session.opening.seed,
                       .choice_index = session.opening.choice_index,
                       .position = position + 1,
                       .top_count = session.opening.top_logprobs,
                       .edits = edits};
    const auto next = static_cast<size_t>(position) + 1;
    const bool is_of_prompt = session.opening.prompt_logprobs.has_value() &&
                              next < session.opening.prompt_token_ids.size();
    if (is_of_prompt) {
      sampling = {.given_token = session.tokens[next],
                  .top_count = *session.opening.prompt_logprobs};
    }
    SELFSAME_CHECK(model_->Run(pass, *session.kv, {&sampling, 1}, {&sampled, 1}).ok());
    if (is_of_prompt) session.prompt_logprobs.push_back({sampled.logprob, sampled.top});
  }
  return sampled;
}

void CanonicalVerifier::Accept(Session& session, SampledToken token, Verdict& verdict) const {
  session.tokens.push_back(token.token_id);
  verdict.logprobs.push_back(token.logprob);
  if (session.opening.top_logprobs > 0) verdict.top_logprobs.push_back(token.top);
  verdict.committed_length = static_cast<int32_t>(session.tokens.size());
  const auto& stops = session.opening.stop_token_ids;
  const auto output_count = session.tokens.size() - session.opening.prompt_token_ids.size();
  if (std::count(stops.begin(), stops.end(), token.token_id) > 0) {
    verdict.end = End::kStopToken;
  } else if (static_cast<int32_t>(output_count) == session.opening.max_tokens) {
    verdict.end = End::kMaxTokens;
  }
}

void CanonicalVerifier::Send(Verdict verdict) {
  ++verdict_count;
  if (tamper) tamper(verdict);
  events_->OnVerdict(index_, std::move(verdict));
}

}  // namespace selfsame::decoder
