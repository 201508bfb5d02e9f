#pragma once

// What verify_response_fuzzer sets around the decoder's core: a model and a verifier whose tokens
// are known, a clock, and sinks that hold the engine to its rules.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>

#include "common/check.h"
#include "common/clock.h"
#include "decoder/engine/engine_core.h"
#include "tests/fuzz/null_ops.h"
#include "tests/testing/tiny_model.h"
#include "tests/testing/tiny_tokenizer.h"

namespace selfsame::decoder {

inline constexpr int32_t kTokenizerVocabSize = 259;
inline constexpr int32_t kVocabSize = 264;  // some ids have no text
inline constexpr int32_t kContextLimit = 48;
inline constexpr int32_t kWindowSize = 4;
inline constexpr int kVerifiers = 2;
inline constexpr size_t kMaxRequests = 6;

inline int32_t FastToken(int32_t position, uint64_t seed) {
  return fuzz::NullOps::TokenAt(position, seed, kVocabSize);
}

// Every third token differs from what the decoder proposes.
inline int32_t CanonicalToken(int32_t position, uint64_t seed) {
  return FastToken(position, position % 3 == 0 ? seed + 1 : seed);
}

struct World {
  World() {
    const selfsame::testing::TempDir dir;
    selfsame::testing::WriteTinyModel(dir.path(), {.vocab_size = kVocabSize,
                                                   .hidden_size = 8,
                                                   .intermediate_size = 8,
                                                   .layer_count = 1,
                                                   .head_count = 1,
                                                   .kv_head_count = 1,
                                                   .head_dim = 16,
                                                   .max_position_embeddings = kContextLimit});
    selfsame::testing::WriteTinyTokenizer(dir.path(), kTokenizerVocabSize);
    tokenizer = *Tokenizer::Load(dir.path());
    model = *Model::Load(dir.path(),
                         {.max_rows = 16, .max_logit_rows = 4, .context_limit = kContextLimit},
                         std::make_unique<fuzz::NullOps>(kVocabSize));
  }

  std::unique_ptr<Tokenizer> tokenizer;
  std::unique_ptr<Model> model;
};

inline World& GetWorld() {
  static World& world = *new World;
  return world;
}

class FuzzClock final : public Clock {
 public:
  SteadyTime Now() const override { return now_; }
  void Advance(std::chrono::milliseconds by) { now_ += by; }

 private:
  SteadyTime now_ = SteadyTime() + std::chrono::hours(1);
};

class CheckingSink final : public GenerationSink {
 public:
  explicit CheckingSink(const GenerationRequest& request)
      : next_position_(static_cast<int32_t>(request.prompt_token_ids.size())),
        seed_(request.seed),
        prompt_length_(next_position_),
        wants_prompt_logprobs_(request.prompt_logprobs.has_value()),
        has_top_(request.top_logprobs > 0),
        is_deterministic_(request.is_deterministic),
        has_logprobs_(request.logprobs) {}

  void OnStarted(const StartedEvent&) override {
    SELFSAME_CHECK(!has_started_ && !is_done_);
    has_started_ = true;
  }
  void OnPromptLogprobs(PromptLogprobsEvent event) override {
    SELFSAME_CHECK(has_started_ && !is_done_ && token_count_ == 0 && wants_prompt_logprobs_);
    SELFSAME_CHECK(event.first_position == next_prompt_position_);
    next_prompt_position_ += static_cast<int32_t>(event.entries.size());
  }
  void OnChunk(ChunkEvent event) override {
    const int32_t shown = event.is_candidate ? static_cast<int32_t>(candidates_.size()) : 0;
    SELFSAME_CHECK(has_started_ && !is_done_ && event.first_position == next_position_ + shown);
    SELFSAME_CHECK(event.logprobs.size() ==
                   (has_logprobs_ && !event.is_candidate ? event.token_ids.size() : 0));
    if (event.is_candidate) {
      SELFSAME_CHECK(event.token_ids.size() == 1);
      candidates_.push_back(event.token_ids[0]);
      return;
    }
    SELFSAME_CHECK(!wants_prompt_logprobs_ || next_prompt_position_ == prompt_length_);
    SELFSAME_CHECK(event.top_logprobs.size() == (has_top_ ? event.token_ids.size() : 0));
    for (const int32_t token : event.token_ids) {
      if (!candidates_.empty()) {
        SELFSAME_CHECK(candidates_.front() == token);
        candidates_.pop_front();
      }
      const int32_t expected = is_deterministic_ ? CanonicalToken(next_position_, seed_)
                                                 : FastToken(next_position_, seed_);
      is_canonical_ = is_canonical_ && token == expected;
      ++next_position_;
      ++token_count_;
    }
  }
  void OnRetract(const RetractEvent& event) override {
    const int32_t kept = event.length - next_position_;
    SELFSAME_CHECK(!is_done_ && kept >= 0 && kept < static_cast<int32_t>(candidates_.size()));
    candidates_.resize(static_cast<size_t>(kept));
  }
  void OnComplete(const CompleteEvent& event) override {
    SELFSAME_CHECK(candidates_.empty());
    SELFSAME_CHECK(has_started_ && !is_done_ && event.output_tokens == token_count_);
    SELFSAME_CHECK(event.rollbacks <= event.windows + 1 + event.rolled_back_tokens);
    is_done_ = true;
  }
  void OnError(const absl::Status& status) override {
    SELFSAME_CHECK(!is_done_ && !status.ok());
    is_done_ = true;
  }

  bool is_done() const { return is_done_; }
  bool is_canonical() const { return is_canonical_; }
  bool is_deterministic() const { return is_deterministic_; }

 private:
  int32_t next_position_;
  std::deque<int32_t> candidates_;
  const uint64_t seed_;
  const int32_t prompt_length_;
  const bool wants_prompt_logprobs_;
  const bool has_top_;
  int32_t next_prompt_position_ = 1;
  const bool is_deterministic_;
  const bool has_logprobs_;
  bool has_started_ = false;
  bool is_done_ = false;
  bool is_canonical_ = true;
  int32_t token_count_ = 0;
};

// A verifier as the protocol asks for.
class SoundVerifier final : public VerifierLink {
 public:
  void OpenSession(SessionOpening opening) override {
    if (!is_up) return;
    const uint64_t id = opening.session_id;
    Session session{.opening = std::move(opening)};
    session.length = static_cast<int32_t>(session.opening.prompt_token_ids.size() +
                                          session.opening.committed_token_ids.size());
    SELFSAME_CHECK(sessions.emplace(id, std::move(session)).second);
  }
  void SubmitWindow(Window window) override {
    const auto session = sessions.find(window.session_id);
    if (!is_up || session == sessions.end()) return;
    SELFSAME_CHECK(session->second.is_open);
    SELFSAME_CHECK(session->second.windows.size() < 3);
    session->second.windows.push_back(std::move(window));
  }
  void CloseSession(uint64_t session_id) override { sessions.erase(session_id); }
  void Reset(absl::Status reason) override {
    SELFSAME_CHECK(!reason.ok());
    GoDown();
  }
  void GoDown() {
    is_up = false;
    sessions.clear();
  }

  // The next verdict the session is owed.
  std::optional<v1::Verdict> Next(uint64_t session_id) {
    const auto found = sessions.find(session_id);
    if (found == sessions.end()) return std::nullopt;
    Session& session = found->second;
    v1::Verdict verdict;
    verdict.set_session_id(session_id);
    verdict.set_outcome(v1::OUTCOME_COMMIT);
    if (!session.is_open) {
      session.is_open = true;
      Accept(session, verdict);
      verdict.set_canonical_token(CanonicalToken(session.length - 1, session.opening.seed));
      AddPromptLogprobs(session.opening, verdict);
    } else if (session.windows.empty()) {
      return std::nullopt;
    } else {
      const Window window = std::move(session.windows.front());
      session.windows.pop_front();
      verdict.set_window_id(window.window_id);
      Decide(session, window, verdict);
    }
    verdict.set_epoch(session.epoch);
    verdict.set_committed_length(session.length);
    return verdict;
  }

  struct Session {
    SessionOpening opening;
    int32_t length = 0;
    uint32_t epoch = 0;
    bool is_open = false;
    bool has_ended = false;
    std::deque<Window> windows = {};
  };

  bool is_up = false;
  std::map<uint64_t, Session> sessions;

 private:
  static void Decide(Session& session, const Window& window, v1::Verdict& verdict) {
    if (window.epoch != session.epoch || session.has_ended) {
      verdict.set_outcome(v1::OUTCOME_DISCARDED);
      return;
    }
    SELFSAME_CHECK(window.first_position == session.length && !window.candidate_ids.empty());
    for (const int32_t candidate : window.candidate_ids) {
      const int32_t canonical = CanonicalToken(session.length, session.opening.seed);
      Accept(session, verdict);
      if (candidate != canonical) {
        verdict.set_outcome(v1::OUTCOME_ROLLBACK);
        verdict.set_canonical_token(canonical);
        ++session.epoch;
        return;
      }
      if (session.has_ended) return;
    }
  }

  static void AddTop(int32_t count, v1::TopLogprobs& top) {
    for (int32_t i = 0; i < count; ++i) {
      top.add_token_ids(i);
      top.add_logprobs(-2.0f);
    }
  }

  static void AddPromptLogprobs(const SessionOpening& opening, v1::Verdict& verdict) {
    if (!opening.prompt_logprobs || opening.prompt_token_ids.size() == 1) return;
    v1::PromptLogprobs& prompt = *verdict.mutable_prompt_logprobs();
    prompt.set_first_position(1);
    for (size_t i = 1; i < opening.prompt_token_ids.size(); ++i) {
      prompt.add_logprobs(-1.0f);
      if (*opening.prompt_logprobs > 0)
        AddTop(*opening.prompt_logprobs, *prompt.add_top_logprobs());
    }
  }

  static void Accept(Session& session, v1::Verdict& verdict) {
    const int32_t token = CanonicalToken(session.length, session.opening.seed);
    verdict.add_logprobs(-1.0f);
    ++session.length;
    const SessionOpening& opening = session.opening;
    if (opening.top_logprobs > 0) AddTop(opening.top_logprobs, *verdict.add_top_logprobs());
    const auto& stops = opening.stop_token_ids;
    if (std::find(stops.begin(), stops.end(), token) != stops.end()) {
      verdict.set_end(v1::END_STOP_TOKEN);
    } else if (session.length - static_cast<int32_t>(opening.prompt_token_ids.size()) ==
               opening.max_tokens) {
      verdict.set_end(v1::END_MAX_TOKENS);
    }
    session.has_ended = verdict.end() != v1::END_UNSPECIFIED;
  }
};

}  // namespace selfsame::decoder
