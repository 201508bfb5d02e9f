// Every message of a Verify stream's way in, through the verifier's conversion, sessions, passes
// and KV, with a shadow that checks what comes back: each window gets one verdict in order, epochs
// and lengths follow the rules, what is committed is canonical and stops at the end.

#include <fuzzer/FuzzedDataProvider.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "common/canonical/rungs.h"
#include "common/check.h"
#include "common/model/model.h"
#include "tests/fuzz/null_ops.h"
#include "tests/testing/tiny_model.h"
#include "verifier/convert.h"
#include "verifier/engine/worker.h"

namespace selfsame::verifier {
namespace {

constexpr int32_t kVocabSize = 8;
constexpr int32_t kContextLimit = 48;
constexpr int32_t kMaxRows = 8;
constexpr int32_t kMaxWindowSize = 6;
constexpr int kStreams = 2;

int32_t CanonicalToken(int32_t position, uint64_t seed) {
  return fuzz::NullOps::TokenAt(position, seed, kVocabSize);
}

Model& GetModel() {
  static Model& model = *[] {
    const testing::TempDir dir;
    testing::WriteTinyModel(dir.path(), {.vocab_size = kVocabSize,
                                         .hidden_size = 8,
                                         .intermediate_size = 8,
                                         .layer_count = 1,
                                         .head_count = 1,
                                         .kv_head_count = 1,
                                         .head_dim = 16,
                                         .max_position_embeddings = kContextLimit});
    auto loaded = Model::Load(
        dir.path(),
        {.max_rows = kMaxRows, .max_logit_rows = kMaxRows, .context_limit = kContextLimit},
        std::make_unique<fuzz::NullOps>(kVocabSize));
    SELFSAME_CHECK(loaded.ok());
    return loaded->release();
  }();
  return model;
}

// What the protocol promises about one open session.
class ShadowSession {
 public:
  explicit ShadowSession(SessionOpening opening)
      : opening_(std::move(opening)), length_(prompt_length()) {
    length_ += static_cast<int32_t>(opening_.committed_token_ids.size());
    next_position_ = length_;
  }

  void Submit(Window window) {
    newest_window_id_ = std::max(newest_window_id_, window.window_id);
    if (window.epoch == epoch_ && window.first_position == next_position_) {
      next_position_ += static_cast<int32_t>(window.candidate_ids.size());
    }
    owed_.push_back(std::move(window));
  }

  void Take(const Verdict& verdict) {
    if (verdict.window_id == 0) {
      SELFSAME_CHECK(!is_open_ && verdict.outcome == Outcome::kCommit && verdict.canonical_token);
      is_open_ = true;
      CheckCommit(verdict, {});
      next_position_ = length_;
      return;
    }
    SELFSAME_CHECK(is_open_ && !owed_.empty());
    const Window window = std::move(owed_.front());
    owed_.pop_front();
    SELFSAME_CHECK(window.window_id == verdict.window_id);
    if (verdict.outcome == Outcome::kDiscarded) {
      SELFSAME_CHECK(window.epoch < epoch_ || has_ended_);
      SELFSAME_CHECK(verdict.epoch == epoch_ && verdict.committed_length == length_);
      SELFSAME_CHECK(verdict.logprobs.empty() && !verdict.canonical_token);
      return;
    }
    const bool is_rollback = verdict.outcome == Outcome::kRollback;
    SELFSAME_CHECK(window.epoch == epoch_ && window.first_position == length_);
    SELFSAME_CHECK(is_rollback == verdict.canonical_token.has_value());
    if (is_rollback) ++epoch_;
    CheckCommit(verdict, window.candidate_ids);
    if (is_rollback || has_ended_) next_position_ = length_;
  }

  bool is_owed() const { return !is_open_ || !owed_.empty(); }
  uint32_t epoch() const { return epoch_; }
  uint64_t next_window_id() const { return newest_window_id_ + 1; }
  int32_t next_position() const { return next_position_; }
  uint64_t seed() const { return opening_.seed; }

 private:
  int32_t prompt_length() const { return static_cast<int32_t>(opening_.prompt_token_ids.size()); }

  void CheckCommit(const Verdict& verdict, const std::vector<int32_t>& candidates) {
    SELFSAME_CHECK(!has_ended_ && verdict.epoch == epoch_);
    const int32_t count = verdict.committed_length - length_;
    SELFSAME_CHECK(count > 0 && verdict.logprobs.size() == static_cast<size_t>(count));
    for (int32_t i = 0; i < count; ++i) {
      SELFSAME_CHECK(!has_ended_);
      const int32_t canonical = CanonicalToken(length_, opening_.seed);
      if (i + 1 == count && verdict.canonical_token) {
        SELFSAME_CHECK(*verdict.canonical_token == canonical);
        SELFSAME_CHECK(candidates.empty() || candidates[static_cast<size_t>(i)] != canonical);
      } else {
        SELFSAME_CHECK(candidates[static_cast<size_t>(i)] == canonical);
      }
      SELFSAME_CHECK(verdict.logprobs[static_cast<size_t>(i)] == -static_cast<float>(length_));
      ++length_;
      const auto& stops = opening_.stop_token_ids;
      has_ended_ = std::find(stops.begin(), stops.end(), canonical) != stops.end() ||
                   length_ - prompt_length() >= opening_.max_tokens || length_ >= kContextLimit;
    }
    SELFSAME_CHECK(has_ended_ == (verdict.end != End::kNone));
    // A commit without an end is of the whole window.
    const bool is_whole = static_cast<size_t>(count) == candidates.size();
    SELFSAME_CHECK(verdict.canonical_token || has_ended_ || is_whole);
  }

  SessionOpening opening_;
  int32_t length_;
  int32_t next_position_;
  uint32_t epoch_ = 0;
  uint64_t newest_window_id_ = 0;
  bool is_open_ = false;
  bool has_ended_ = false;
  std::deque<Window> owed_;
};

class ShadowStream final : public StreamSink {
 public:
  void OnVerdict(Verdict verdict) override {
    SELFSAME_CHECK(!has_ended);
    const auto session = sessions.find(verdict.session_id);
    SELFSAME_CHECK(session != sessions.end());
    SELFSAME_CHECK(ToProto(verdict).has_verdict());
    session->second.Take(verdict);
  }
  void OnSessionError(uint64_t session_id, const absl::Status& status) override {
    SELFSAME_CHECK(!has_ended && !status.ok());
    SELFSAME_CHECK(ToProto(session_id, status).has_session_error());
    sessions.erase(session_id);
    ++error_count;
  }
  void OnInboxRoom() override {}
  void OnStreamEnd(const absl::Status&) override { has_ended = true; }

  std::map<uint64_t, ShadowSession> sessions;
  int error_count = 0;
  bool has_ended = false;
};

class Harness {
 public:
  explicit Harness(FuzzedDataProvider& input)
      : input_(input),
        worker_(GetModel(), *GetModel().CreateKvCache(input.ConsumeIntegralInRange(3, 6)),
                VerifierInfo{.fingerprint = "fp",
                             .arithmetic = "none",
                             .context_limit = kContextLimit,
                             .vocab_size = kVocabSize,
                             .max_window_size = kMaxWindowSize,
                             .max_sessions = 3,
                             .rungs = DefaultRungs(kMaxRows)},
                std::chrono::milliseconds(input.ConsumeIntegralInRange(0, 2)), DecideWindow) {
    for (size_t i = 0; i < kStreams; ++i) OpenStream(i);
  }

  void Run() {
    while (input_.remaining_bytes() > 0) Act();
    for (int passes = 0; RunPass(); ++passes) SELFSAME_CHECK(passes < 100000);
    for (const auto& stream : streams_) {
      for (const auto& [id, session] : stream->sessions) SELFSAME_CHECK(!session.is_owed());
    }
    worker_.EndAll(absl::UnavailableError("the end"));
    for (const auto& stream : streams_) {
      SELFSAME_CHECK(stream->has_ended && stream->sessions.empty());
    }
  }

 private:
  void Act() {
    index_ = input_.ConsumeIntegralInRange<size_t>(0, kStreams - 1);
    switch (input_.ConsumeIntegralInRange(0, 9)) {
      case 0: {
        v1::VerifyRequest request;
        const std::string bytes = input_.ConsumeRandomLengthString(64);
        if (request.ParseFromString(bytes)) Send(request);
        break;
      }
      case 1:
        worker_.CloseStream(stream_ids_[index_]);
        OpenStream(index_);
        break;
      case 2:
        SendClose();
        break;
      case 3:
        SendOpen();
        break;
      case 4:
        SendAnyWindow();
        break;
      case 5:
      case 6:
      case 7:
        SendSoundWindow();
        break;
      default:
        RunPass();
        break;
    }
  }

  void OpenStream(size_t index) {
    stream_ids_[index] = next_stream_id_++;
    streams_[index] = std::make_shared<ShadowStream>();
    worker_.OpenStream(stream_ids_[index], streams_[index]);
  }

  bool RunPass() {
    now_ += std::chrono::milliseconds(1);
    const auto wake_at = worker_.RunPass(now_);
    SELFSAME_CHECK(wake_at.ok());
    return wake_at->has_value();
  }

  uint64_t AnySession() { return input_.ConsumeIntegralInRange<uint64_t>(0, 4); }

  template <typename Repeated>
  void AddTokens(Repeated& tokens, int max_count) {
    const int count = input_.ConsumeIntegralInRange(0, max_count);
    for (int i = 0; i < count; ++i) {
      tokens.Add(input_.ConsumeIntegralInRange<int32_t>(0, kVocabSize));  // the last is unknown
    }
  }

  void SendOpen() {
    v1::VerifyRequest request;
    v1::OpenSession& open = *request.mutable_open_session();
    open.set_session_id(AnySession());
    open.mutable_sampling()->set_seed(input_.ConsumeIntegralInRange<uint64_t>(0, 3));
    open.mutable_sampling()->set_top_p(input_.ConsumeBool() ? 1.0f
                                                            : input_.ConsumeFloatingPoint<float>());
    open.mutable_sampling()->set_temperature(
        input_.ConsumeBool() ? 0.0f : input_.ConsumeFloatingPoint<float>());
    AddTokens(*open.mutable_prompt_token_ids(), 20);
    open.mutable_stop()->set_max_tokens(input_.ConsumeIntegralInRange(-1, kContextLimit));
    AddTokens(*open.mutable_stop()->mutable_stop_token_ids(), 2);
    const int32_t committed = input_.ConsumeIntegralInRange(0, 4);
    for (int32_t i = 0; i < committed; ++i) {
      open.add_committed_token_ids(
          CanonicalToken(open.prompt_token_ids_size() + i, open.sampling().seed()));
    }
    if (input_.ConsumeBool()) open.set_expected_fingerprint("fp");
    Send(request);
  }

  void SendAnyWindow() {
    v1::VerifyRequest request;
    v1::SubmitWindow& window = *request.mutable_submit_window();
    window.set_session_id(AnySession());
    window.set_epoch(input_.ConsumeIntegralInRange<uint32_t>(0, 3));
    window.set_window_id(input_.ConsumeIntegralInRange<uint64_t>(0, 8));
    window.set_first_position(input_.ConsumeIntegralInRange(-1, kContextLimit + 1));
    AddTokens(*window.mutable_candidate_ids(), kMaxWindowSize + 1);
    Send(request);
  }

  // The next window of a session as a decoder would submit it, or with a stale epoch.
  void SendSoundWindow() {
    const auto& sessions = streams_[index_]->sessions;
    const auto session = sessions.find(AnySession());
    if (session == sessions.end()) return;
    const ShadowSession& shadow = session->second;
    v1::VerifyRequest request;
    v1::SubmitWindow& window = *request.mutable_submit_window();
    window.set_session_id(session->first);
    window.set_epoch(shadow.epoch() - (shadow.epoch() > 0 && input_.ConsumeBool() ? 1 : 0));
    window.set_window_id(shadow.next_window_id());
    window.set_first_position(shadow.next_position());
    const int32_t size = input_.ConsumeIntegralInRange(1, kMaxWindowSize);
    const int32_t wrong = input_.ConsumeIntegralInRange(0, 2 * size);
    for (int32_t i = 0; i < size; ++i) {
      const int32_t canonical = CanonicalToken(shadow.next_position() + i, shadow.seed());
      window.add_candidate_ids(i == wrong ? (canonical + 1) % kVocabSize : canonical);
    }
    Send(request);
  }

  void SendClose() {
    v1::VerifyRequest request;
    request.mutable_close_session()->set_session_id(AnySession());
    Send(request);
  }

  void Send(const v1::VerifyRequest& request) {
    auto message = FromProto(request);
    if (!message.ok()) {
      SELFSAME_CHECK(request.message_case() == v1::VerifyRequest::MESSAGE_NOT_SET);
      return;
    }
    ShadowStream& stream = *streams_[index_];
    const uint64_t stream_id = stream_ids_[index_];
    if (auto* opening = std::get_if<SessionOpening>(&*message)) {
      const int errors = stream.error_count;
      worker_.OpenSession(stream_id, *opening, now_);
      if (stream.error_count == errors) {
        const uint64_t id = opening->session_id;
        SELFSAME_CHECK(stream.sessions.emplace(id, ShadowSession(std::move(*opening))).second);
      }
    } else if (auto* window = std::get_if<Window>(&*message)) {
      const auto session = stream.sessions.find(window->session_id);
      if (session != stream.sessions.end()) session->second.Submit(*window);
      worker_.SubmitWindow(stream_id, std::move(*window), now_);
    } else {
      const uint64_t id = std::get<SessionClosing>(*message).session_id;
      worker_.CloseSession(stream_id, id);
      stream.sessions.erase(id);
    }
  }

  FuzzedDataProvider& input_;
  SteadyTime now_;
  Worker worker_;
  std::array<uint64_t, kStreams> stream_ids_{};
  std::array<std::shared_ptr<ShadowStream>, kStreams> streams_;
  uint64_t next_stream_id_ = 1;
  size_t index_ = 0;  // of the stream that the action is about
};

}  // namespace
}  // namespace selfsame::verifier

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  FuzzedDataProvider input(data, size);
  selfsame::verifier::Harness(input).Run();
  return 0;
}
