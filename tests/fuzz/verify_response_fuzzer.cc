// Every message of a Verify stream's way back, through the decoder's conversion into the engine's
// core: sound verdicts, tampered ones, any bytes, in any order with requests, cancels, losses and
// time. Whatever a verifier says, the decoder keeps its own rules: tokens that were sent stand,
// each request ends once, and when verifiers behave again every request does end. Without tampering
// the answers are the canonical ones.

#include <fuzzer/FuzzedDataProvider.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/check.h"
#include "common/clock.h"
#include "decoder/convert.h"
#include "decoder/engine/engine_core.h"
#include "tests/fuzz/null_ops.h"
#include "tests/testing/tiny_model.h"
#include "tests/testing/tiny_tokenizer.h"

namespace selfsame::decoder {
namespace {

using std::chrono::milliseconds;

constexpr int32_t kTokenizerVocabSize = 259;
constexpr int32_t kVocabSize = 264;  // some ids have no text
constexpr int32_t kContextLimit = 48;
constexpr int32_t kWindowSize = 4;
constexpr int kVerifiers = 2;
constexpr size_t kMaxRequests = 6;

int32_t FastToken(int32_t position, uint64_t seed) {
  return fuzz::NullOps::TokenAt(position, seed, kVocabSize);
}

// Every third token differs from what the decoder proposes.
int32_t CanonicalToken(int32_t position, uint64_t seed) {
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

World& GetWorld() {
  static World& world = *new World;
  return world;
}

class FuzzClock final : public Clock {
 public:
  SteadyTime Now() const override { return now_; }
  void Advance(milliseconds by) { now_ += by; }

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

class Harness {
 public:
  explicit Harness(FuzzedDataProvider& input) : input_(input) {
    WindowOptions window_options;
    window_options.window_size = kWindowSize;
    window_options.first_window_size = 1;
    window_options.min_idle_window_size = 2;
    policy_ = std::make_unique<AdaptiveWindowPolicy>(window_options);
    kv_ = *GetWorld().model->CreateKvCache(input.ConsumeIntegralInRange(3, 8));
    CoreOptions options;
    options.scheduler.max_batch_tokens = 8;
    options.scheduler.max_batch_size = 3;
    options.sessions.window_size = kWindowSize;
    options.sessions.failover_timeout = milliseconds(1000);
    options.max_inflight_windows = 3;
    core_ = std::make_unique<EngineCore>(options, *GetWorld().model, *kv_, *GetWorld().tokenizer,
                                         *policy_, clock_,
                                         std::vector<VerifierLink*>{&links_[0], &links_[1]});
    for (int i = 0; i < kVerifiers; ++i) GoUp(i);
  }

  void Run() {
    while (input_.remaining_bytes() > 0) Act();
    for (int i = 0; i < kVerifiers; ++i) {
      if (!links_[i].is_up) GoUp(i);
    }
    for (int steps = 0; !AllDone(); ++steps) {
      SELFSAME_CHECK(steps < 10000);  // else a request never ends
      Step();
      for (int i = 0; i < kVerifiers; ++i) {
        if (!links_[i].is_up) GoUp(i);
        std::vector<uint64_t> ids;
        for (const auto& [id, session] : links_[i].sessions) ids.push_back(id);
        for (const uint64_t id : ids) {
          if (auto verdict = links_[i].Next(id)) Deliver(i, *verdict);
        }
      }
    }
    SELFSAME_CHECK(core_->stats().running_requests == 0 && core_->stats().waiting_requests == 0);
    for (const SoundVerifier& link : links_) SELFSAME_CHECK(link.sessions.empty());
    for (const auto& sink : sinks_) {
      SELFSAME_CHECK(sink->is_canonical() || (is_tampered_ && sink->is_deterministic()));
    }
  }

 private:
  void Act() {
    const int verifier = input_.ConsumeIntegralInRange(0, kVerifiers - 1);
    switch (input_.ConsumeIntegralInRange(0, 11)) {
      case 0:
        if (sinks_.size() < kMaxRequests) Submit();
        break;
      case 1:
        core_->Cancel(input_.ConsumeIntegralInRange<uint64_t>(0, kMaxRequests));
        break;
      case 2:
        links_[verifier].is_up ? GoDown(verifier) : GoUp(verifier);
        break;
      case 3:
        DeliverBytes(verifier);
        break;
      case 4:
        DeliverAny(verifier);
        break;
      case 5:
        DeliverError(verifier);
        break;
      case 6:
      case 7:
      case 8:
        DeliverSound(verifier);
        break;
      default:
        Step();
        break;
    }
  }

  void Step() {
    SELFSAME_CHECK(core_->Step().ok());
    clock_.Advance(milliseconds(50));
  }

  bool AllDone() const {
    return std::all_of(sinks_.begin(), sinks_.end(), [](const auto& s) { return s->is_done(); });
  }

  void GoUp(int verifier) {
    links_[verifier].is_up = true;
    VerifierInfo info;
    info.fingerprint = "F";
    info.context_limit = kContextLimit;
    info.vocab_size = kVocabSize;
    info.max_window_size = 1 + 2 * verifier;
    info.max_sessions = 2;
    core_->OnVerifierUp(verifier, std::move(info));
  }

  void GoDown(int verifier) {
    links_[verifier].GoDown();
    core_->OnVerifierDown(verifier, absl::UnavailableError("lost"));
  }

  void Submit() {
    GenerationRequest request;
    request.is_deterministic = input_.ConsumeIntegralInRange(0, 3) > 0;
    request.logprobs = input_.ConsumeBool();
    request.stream_candidates = request.is_deterministic && request.logprobs;
    request.seed = input_.ConsumeIntegralInRange<uint64_t>(0, 7);
    if (request.logprobs && request.seed >= 5) request.top_logprobs = 2;
    if (request.seed % 3 == 1) request.prompt_logprobs = static_cast<int32_t>(request.seed / 3);
    const int32_t prompt = input_.ConsumeIntegralInRange(1, 20);
    request.prompt_token_ids.assign(static_cast<size_t>(prompt), 'a' + 3);
    request.max_tokens = input_.ConsumeIntegralInRange(1, kContextLimit - prompt);
    if (input_.ConsumeBool()) {
      const int32_t end = input_.ConsumeIntegralInRange(prompt, kContextLimit);
      request.stop_token_ids = {CanonicalToken(end, request.seed)};
    }
    // Most tokens are no whole character.
    if (input_.ConsumeBool()) request.stop_strings = {"\uFFFD\uFFFD", "x"};
    sinks_.push_back(std::make_shared<CheckingSink>(request));
    core_->Submit(sinks_.size(), std::move(request), sinks_.back());
  }

  uint64_t AnySession(int verifier) {
    const auto& sessions = links_[verifier].sessions;
    if (sessions.empty()) return input_.ConsumeIntegralInRange<uint64_t>(0, 20);
    const size_t index = input_.ConsumeIntegralInRange<size_t>(0, sessions.size() - 1);
    return std::next(sessions.begin(), static_cast<std::ptrdiff_t>(index))->first;
  }

  // What VerifierClient does with a message.
  void Deliver(int verifier, const v1::Verdict& proto) {
    if (!links_[verifier].is_up) return;
    auto verdict = FromProto(proto);
    if (!verdict.ok()) {
      SELFSAME_CHECK(absl::IsInternal(verdict.status()));
      GoDown(verifier);
      return;
    }
    core_->OnVerdict(verifier, *verdict);
  }

  void DeliverBytes(int verifier) {
    v1::VerifyResponse response;
    if (!response.ParseFromString(input_.ConsumeRandomLengthString(48))) return;
    if (response.has_verdict()) {
      is_tampered_ = true;
      Deliver(verifier, response.verdict());
    } else if (response.has_session_error() && links_[verifier].is_up) {
      links_[verifier].sessions.erase(response.session_error().session_id());
      core_->OnSessionError(verifier, response.session_error().session_id(),
                            FromProto(response.session_error()));
    }
  }

  void DeliverAny(int verifier) {
    v1::Verdict verdict;
    verdict.set_session_id(AnySession(verifier));
    verdict.set_window_id(input_.ConsumeIntegralInRange<uint64_t>(0, 6));
    Tamper(verdict);
    const int count = input_.ConsumeIntegralInRange(0, 5);
    for (int i = 0; i < count; ++i) verdict.add_logprobs(input_.ConsumeFloatingPoint<float>());
    if (input_.ConsumeBool()) verdict.set_canonical_token(AnyToken());
    is_tampered_ = true;
    Deliver(verifier, verdict);
  }

  int32_t AnyToken() { return input_.ConsumeIntegralInRange<int32_t>(-1, kVocabSize); }

  void Tamper(v1::Verdict& verdict) {
    verdict.set_outcome(static_cast<v1::Outcome>(input_.ConsumeIntegralInRange(0, 4)));
    verdict.set_epoch(input_.ConsumeIntegralInRange<uint32_t>(0, 4));
    verdict.set_committed_length(input_.ConsumeIntegralInRange(-1, kContextLimit + 1));
    verdict.set_end(static_cast<v1::End>(input_.ConsumeIntegralInRange(0, 4)));
  }

  // A sound verdict, perhaps with one field changed.
  void DeliverSound(int verifier) {
    auto verdict = links_[verifier].Next(AnySession(verifier));
    if (!verdict) return;
    const int change = input_.ConsumeIntegralInRange(0, 15);
    is_tampered_ = is_tampered_ || change > 8;
    v1::Verdict other = *verdict;
    Tamper(other);
    if (change == 9) verdict->set_outcome(other.outcome());
    if (change == 10) verdict->set_epoch(other.epoch());
    if (change == 11) verdict->set_committed_length(other.committed_length());
    if (change == 12) verdict->set_end(other.end());
    if (change == 13) verdict->set_canonical_token(AnyToken());
    if (change == 14) verdict->add_logprobs(input_.ConsumeFloatingPoint<float>());
    if (change == 14) verdict->add_top_logprobs()->add_token_ids(AnyToken());
    if (change == 15) Deliver(verifier, *verdict);  // and once more
    Deliver(verifier, *verdict);
  }

  void DeliverError(int verifier) {
    if (!links_[verifier].is_up) return;
    v1::SessionError error;
    error.set_session_id(AnySession(verifier));
    error.set_code(input_.ConsumeIntegralInRange(-1, 20));
    links_[verifier].sessions.erase(error.session_id());
    core_->OnSessionError(verifier, error.session_id(), FromProto(error));
  }

  FuzzedDataProvider& input_;
  FuzzClock clock_;
  std::unique_ptr<WindowPolicy> policy_;
  std::unique_ptr<KvCache> kv_;
  SoundVerifier links_[kVerifiers];
  std::unique_ptr<EngineCore> core_;
  std::vector<std::shared_ptr<CheckingSink>> sinks_;
  bool is_tampered_ = false;
};

}  // namespace
}  // namespace selfsame::decoder

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  FuzzedDataProvider input(data, size);
  selfsame::decoder::Harness(input).Run();
  return 0;
}
