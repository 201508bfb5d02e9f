// Every message of a Verify stream's way back, through the decoder's conversion into the engine's
// core: sound verdicts, tampered ones, any bytes, in any order with requests, cancels, losses and
// time. Whatever a verifier says, the decoder keeps its own rules: tokens that were sent stand,
// each request ends once, and when verifiers behave again every request does end. Without tampering
// the answers are the canonical ones.

#include <fuzzer/FuzzedDataProvider.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/check.h"
#include "common/clock.h"
#include "decoder/convert.h"
#include "decoder/engine/engine_core.h"
#include "tests/fuzz/verify_response_world.h"

namespace selfsame::decoder {
namespace {

using std::chrono::milliseconds;

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
