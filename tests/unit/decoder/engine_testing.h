#pragma once

// What the engine's tests stand on: a tiny random model and its tokeniser, a verifier that answers
// with the canonical model one row at a time, and a sink that checks the order of its events.

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "common/clock.h"
#include "common/model/model.h"
#include "common/mutex.h"
#include "common/tokenizer/tokenizer.h"
#include "decoder/engine/engine.h"
#include "decoder/engine/types.h"
#include "decoder/engine/window_policy.h"
#include "tests/testing/canonical_loop.h"
#include "tests/testing/tiny_model.h"

namespace selfsame::decoder {

inline constexpr int32_t kTestContextLimit = 256;
inline constexpr int32_t kTestMaxRows = 48;
inline constexpr int32_t kTestMaxLogitRows = 8;
inline constexpr int32_t kTestEos = 2;

// The verifier's model, and the decoder's: the same but for the last bit of some weights, so that
// it proposes what is often, not always, the canonical token, whatever the two schedules do.
class TinyWorld {
 public:
  static TinyWorld& Get();

  std::unique_ptr<Model> LoadCanonical() const;
  std::unique_ptr<Model> LoadFast() const;
  const Tokenizer& tokenizer() const { return *tokenizer_; }

  // The request's answer by definition, cut at its stop strings. Logprobs and text included.
  struct Expected {
    std::vector<int32_t> token_ids;
    std::vector<float> logprobs;
    std::vector<TopLogprobs> top_logprobs;
    std::vector<PromptLogprob> prompt_logprobs;
    std::string text;
    FinishReason reason = FinishReason::kStop;
  };
  Expected Answer(const GenerationRequest& request);

 private:
  TinyWorld();

  selfsame::testing::TempDir canonical_dir_;
  selfsame::testing::TempDir fast_dir_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<Model> model_;
};

// A deterministic request; `index` picks prompt, and greedy (even) or seeded sampling (odd).
GenerationRequest TestRequest(int index, int32_t max_tokens);

class FakeClock final : public Clock {
 public:
  SteadyTime Now() const override { return now_; }
  void Advance(std::chrono::milliseconds by) { now_ += by; }

 private:
  SteadyTime now_ = SteadyTime() + std::chrono::hours(1);
};

// Keeps everything it gets, and fails the test when the order of events breaks the contract. It
// follows candidates as the comment of Chunk in inference.proto tells a client to.
class RecordingSink final : public GenerationSink {
 public:
  void OnStarted(const StartedEvent& event) override;
  void OnPromptLogprobs(PromptLogprobsEvent event) override;
  void OnChunk(ChunkEvent event) override;
  void OnRetract(const RetractEvent& event) override;
  void OnComplete(const CompleteEvent& event) override;
  void OnError(const absl::Status& status) override;

  // Any thread.
  bool is_done() const;
  void WaitUntilDone();
  void WaitForTokens(size_t count);

  struct Candidate {
    int32_t token_id = 0;
    std::string text;
  };
  // What a client shows.
  std::string shown_text() const;

  // Once it is done.
  std::optional<StartedEvent> started;
  std::vector<ChunkEvent> chunks;  // of tokens that stand
  std::deque<Candidate> candidates;
  int candidate_count = 0;
  int retract_count = 0;
  std::vector<int32_t> token_ids;
  std::vector<float> logprobs;
  std::vector<TopLogprobs> top_logprobs;
  std::vector<PromptLogprob> prompt_logprobs;
  int prompt_piece_count = 0;
  std::string text;
  std::optional<CompleteEvent> complete;
  absl::Status status;

 private:
  void AddCandidate(const ChunkEvent& event);
  void CommitCandidates(const ChunkEvent& event);
  void End();

  int32_t committed_length_ = -1;  // -1: not known yet
  mutable Mutex mutex_;
  mutable CondVar changed_;
  bool is_done_ ABSL_GUARDED_BY(mutex_) = false;
  size_t token_count_ ABSL_GUARDED_BY(mutex_) = 0;
};

// A verifier behind a link, without a stream between: keeps what the engine sends until ProcessOne
// answers it. Follows verification.proto; the switches make it break rules.
class CanonicalVerifier final : public VerifierLink {
 public:
  CanonicalVerifier(int index, std::string fingerprint);

  void Attach(VerifierEvents* events) { events_ = events; }
  void Connect();
  void Disconnect();
  // Answers the oldest message. False when there is none.
  bool ProcessOne();

  void OpenSession(SessionOpening opening) override;
  void SubmitWindow(Window window) override;
  void CloseSession(uint64_t session_id) override;
  void Reset(absl::Status reason) override;

  size_t session_count() const { return sessions_.size(); }

  int32_t max_window_size = 64;
  int32_t max_sessions = 0;
  bool can_roll_back = true;                // false: every candidate is committed unseen
  std::function<void(Verdict&)> tamper;     // sees each verdict before it leaves
  std::function<absl::Status(int)> refuse;  // of the n-th opening, from 1; OK: not refused
  int verdict_count = 0;
  int opening_count = 0;
  int reset_count = 0;
  std::vector<SessionOpening> openings;
  std::vector<Window> windows;

 private:
  struct Session {
    SessionOpening opening;
    std::vector<int32_t> tokens;  // prompt and committed output
    std::unique_ptr<KvCache> kv;
    int32_t kv_length = 0;
    std::vector<PromptLogprob> prompt_logprobs;
    uint32_t epoch = 0;
  };
  struct Close {
    uint64_t session_id;
  };
  struct ResetRequest {};
  using Message = std::variant<SessionOpening, Window, Close, ResetRequest>;

  void Push(Message message);
  void Process(SessionOpening& opening);
  void Process(Window& window);
  void Process(const Close& close) { sessions_.erase(close.session_id); }
  void Process(const ResetRequest& reset);
  SampledToken Next(Session& session);
  // Adds one token to the session and the verdict.
  void Accept(Session& session, SampledToken token, Verdict& verdict) const;
  void Send(Verdict verdict);

  int index_;
  std::string fingerprint_;
  std::unique_ptr<Model> model_;
  VerifierEvents* events_ = nullptr;
  std::map<uint64_t, Session> sessions_;

  Mutex mutex_;
  bool is_connected_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<Message> messages_ ABSL_GUARDED_BY(mutex_);
};

// Cuts at random, from a seed, and takes no notice of age.
class RandomWindowPolicy final : public WindowPolicy {
 public:
  RandomWindowPolicy(uint32_t seed, int32_t window_size)
      : state_(seed), window_size_(window_size) {}
  int32_t Cut(const WindowQuery& query) override;
  int32_t FullSize(int32_t) const override { return window_size_; }
  std::optional<std::chrono::milliseconds> max_age() const override { return std::nullopt; }

 private:
  uint32_t Below(uint32_t bound);
  uint32_t state_;
  int32_t window_size_;
};

}  // namespace selfsame::decoder
