#include "tests/sim/sim_link.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "tests/sim/sim_sequence.h"

namespace selfsame::sim {
namespace {

constexpr int32_t kMaxLength = 100000;  // of any answer; more is garbage

verifier::SessionOpening Convert(decoder::SessionOpening opening) {
  return {.session_id = opening.session_id,
          .prompt_token_ids = std::move(opening.prompt_token_ids),
          .committed_token_ids = std::move(opening.committed_token_ids),
          .temperature = opening.temperature,
          .top_k = opening.top_k,
          .top_p = opening.top_p,
          .min_p = opening.min_p,
          .logit_rules = std::move(opening.logit_rules),
          .seed = opening.seed,
          .choice_index = opening.choice_index,
          .max_tokens = opening.max_tokens,
          .stop_token_ids = std::move(opening.stop_token_ids),
          .expected_fingerprint = std::move(opening.expected_fingerprint),
          .top_logprobs = opening.top_logprobs,
          .prompt_logprobs = opening.prompt_logprobs};
}

verifier::Window Convert(decoder::Window window) {
  return {.session_id = window.session_id,
          .epoch = window.epoch,
          .window_id = window.window_id,
          .first_position = window.first_position,
          .candidate_ids = std::move(window.candidate_ids)};
}

decoder::Verdict Convert(const verifier::Verdict& verdict) {
  return {.session_id = verdict.session_id,
          .window_id = verdict.window_id,
          .outcome = static_cast<decoder::Outcome>(verdict.outcome),
          .epoch = verdict.epoch,
          .committed_length = verdict.committed_length,
          .canonical_token = verdict.canonical_token,
          .logprobs = verdict.logprobs,
          .end = static_cast<decoder::End>(verdict.end),
          .cached_tokens = verdict.cached_tokens,
          .top_logprobs = verdict.top_logprobs,
          .prompt_logprobs = verdict.prompt_logprobs,
          .verifier_time = std::nullopt};
}

decoder::VerifierInfo Convert(const verifier::VerifierInfo& info) {
  return {.fingerprint = info.fingerprint,
          .context_limit = info.context_limit,
          .vocab_size = info.vocab_size,
          .max_window_size = info.max_window_size,
          .max_sessions = info.max_sessions};
}

}  // namespace

SimLink::SimLink(World& world, int index, const LinkSetup& setup, SimDecoder& decoder,
                 SimVerifier& verifier, Random random)
    : world_(world),
      index_(index),
      setup_(setup),
      decoder_(decoder),
      verifier_(verifier),
      random_(random) {}

void SimLink::ScheduleConnect() {
  world_.After(Micros(random_.Below(static_cast<int32_t>(setup_.max_reconnect_delay.count()) + 1)),
               [this] { Connect(); });
}

void SimLink::Connect() {
  // A verifier calls when it comes up.
  if (stream_ != nullptr || owes_down_ || !verifier_.is_up()) return;
  auto stream = std::make_shared<Stream>();
  stream_ = stream;
  ++stream_count_;
  stream->verifier_stream_id = verifier_.OpenStream(
      [this, stream](VerifierAnswer answer) { OnAnswer(stream, std::move(answer)); },
      [this, stream] {
        stream->reaches_verifier = false;
        if (stream == stream_) Break(UnavailableError("the verifier crashed"));
      });
  world_.Trace("connect", {index_, static_cast<int64_t>(stream->verifier_stream_id)});
  const decoder::VerifierInfo info = Convert(verifier_.info());
  decoder_.Post(
      [index = index_, info](decoder::EngineCore& core) { core.OnVerifierUp(index, info); });
}

void SimLink::Drop() {
  if (stream_ != nullptr) Break(UnavailableError("the stream broke"));
}

void SimLink::Stall(Micros time) {
  if (stream_ == nullptr) return;
  world_.Trace("stall", {index_, time.count()});
  stream_->decoder_order = std::max(stream_->decoder_order, world_.Now() + time);
  stream_->verifier_order = std::max(stream_->verifier_order, world_.Now() + time);
}

void SimLink::Mute() {
  if (stream_ == nullptr) return;
  world_.Trace("mute", {index_});
  ++mute_count_;
  stream_->reaches_decoder = false;
}

void SimLink::Break(absl::Status reason) {
  const std::shared_ptr<Stream> stream = std::exchange(stream_, nullptr);
  world_.Trace("stream breaks", {index_, static_cast<int64_t>(stream->verifier_stream_id)});
  stream->is_broken = true;
  owes_down_ = true;
  // What is on its way may still arrive before the end is noticed, or not.
  if (random_.Chance(500)) stream->reaches_decoder = false;
  if (random_.Chance(500)) stream->reaches_verifier = false;
  ToDecoder(stream, nullptr);
  const SteadyTime down_at = stream->decoder_order;
  world_.At(down_at, [this, stream, reason] {
    stream->reaches_decoder = false;
    owes_down_ = false;
    decoder_.Post([index = index_, reason](decoder::EngineCore& core) {
      core.OnVerifierDown(index, reason);
    });
    ScheduleConnect();
  });
  const SteadyTime closed_at = std::max(stream->verifier_order, world_.Now() + Delay());
  world_.At(closed_at, [this, stream] {
    stream->reaches_verifier = false;
    verifier_.CloseStream(stream->verifier_stream_id);
  });
}

void SimLink::Reset(absl::Status reason) {
  world_.Trace("reset", {index_});
  if (stream_ == nullptr) return;
  // Nothing that still comes is believed.
  stream_->reaches_decoder = false;
  Break(std::move(reason));
}

void SimLink::OpenSession(decoder::SessionOpening opening) {
  if (stream_ == nullptr) return;
  Stream& stream = *stream_;
  const uint64_t id = opening.session_id;
  ++session_count_;
  if (stream.first_session_id == 0) stream.first_session_id = id;
  stream.newest_session_id = id;
  Session& session = stream.sessions[id];
  session.sampling = {.temperature = opening.temperature,
                      .top_k = opening.top_k,
                      .top_p = opening.top_p,
                      .min_p = opening.min_p,
                      .seed = opening.seed,
                      .choice_index = opening.choice_index,
                      .position = 0};
  session.logit_rules = opening.logit_rules;
  session.stop_token_ids = opening.stop_token_ids;
  session.prompt_length = opening.prompt_token_ids.size();
  session.tokens = opening.prompt_token_ids;
  session.tokens.insert(session.tokens.end(), opening.committed_token_ids.begin(),
                        opening.committed_token_ids.end());
  world_.Trace("open",
               {index_, static_cast<int64_t>(id), static_cast<int64_t>(session.tokens.size())});
  ToVerifier(Convert(std::move(opening)));
}

void SimLink::SubmitWindow(decoder::Window window) {
  if (stream_ == nullptr) return;
  const auto session = stream_->sessions.find(window.session_id);
  if (session == stream_->sessions.end()) return;
  world_.Trace(
      "window",
      {index_, static_cast<int64_t>(window.session_id), static_cast<int64_t>(window.window_id),
       window.epoch, window.first_position, static_cast<int64_t>(window.candidate_ids.size())});
  ++window_count_;
  std::vector<int32_t>& tokens = session->second.tokens;
  if (window.first_position > static_cast<int32_t>(tokens.size())) {
    world_.Fail("a window leaves a gap");
    return;
  }
  tokens.resize(static_cast<size_t>(window.first_position));
  CheckWindow(session->second, window);
  tokens.insert(tokens.end(), window.candidate_ids.begin(), window.candidate_ids.end());
  ToVerifier(Convert(std::move(window)));
}

void SimLink::CheckWindow(const Session& session, const decoder::Window& window) {
  const auto proposals = decoder_.proposals().find(session.sampling.seed);
  const auto output = session.tokens.begin() + static_cast<ptrdiff_t>(session.prompt_length);
  SimSequence sequence(session.sampling, session.logit_rules, {session.tokens.begin(), output},
                       session.stop_token_ids);
  for (auto token = output; token != session.tokens.end(); ++token) sequence.Append(*token);
  for (const int32_t candidate : window.candidate_ids) {
    const int32_t position = sequence.length();
    const SampledToken canonical = sequence.Next(/*weights=*/0);
    if (proposals == decoder_.proposals().end() ||
        static_cast<size_t>(position) >= proposals->second.size()) {
      world_.Fail("a candidate nobody proposed");
      return;
    }
    const Proposal& proposal = proposals->second[static_cast<size_t>(position)];
    if (proposal.token_id != candidate) world_.Fail("a candidate differs from what was proposed");
    if (proposal.canonical != canonical.token_id) {
      world_.Fail(absl::StrCat("session ", window.session_id, ": the candidate for position ",
                               position, " was made from KV of another prefix"));
    }
    sequence.Append(candidate);
  }
}

void SimLink::CloseSession(uint64_t session_id) {
  if (stream_ == nullptr || stream_->sessions.erase(session_id) == 0) return;
  world_.Trace("close", {index_, static_cast<int64_t>(session_id)});
  ToVerifier(SessionClosing{session_id});
}

void SimLink::ToVerifier(VerifierMessage message) {
  const std::shared_ptr<Stream> stream = stream_;
  stream->verifier_order = std::max(stream->verifier_order, world_.Now() + Delay());
  world_.At(stream->verifier_order, [this, stream, message = std::move(message)] {
    if (stream->reaches_verifier) verifier_.Post(stream->verifier_stream_id, message);
  });
}

void SimLink::ToDecoder(const std::shared_ptr<Stream>& stream, std::function<void()> deliver) {
  stream->decoder_order = std::max(stream->decoder_order, world_.Now() + Delay());
  if (deliver == nullptr) return;
  world_.At(stream->decoder_order, [stream, deliver = std::move(deliver)] {
    if (stream->reaches_decoder) deliver();
  });
}

void SimLink::OnAnswer(const std::shared_ptr<Stream>& stream, VerifierAnswer answer) {
  if (stream->is_broken) return;
  ToDecoder(stream, [this, stream, answer = std::move(answer)] { Deliver(stream, answer); });
}

// Answers may come late, for sessions closed meanwhile, but not for sessions never opened here.
bool SimLink::IsKnown(const Stream& stream, uint64_t session_id) const {
  return stream.first_session_id != 0 && session_id >= stream.first_session_id &&
         session_id <= stream.newest_session_id;
}

void SimLink::Deliver(const std::shared_ptr<Stream>& stream, const VerifierAnswer& answer) {
  if (const auto* end = std::get_if<StreamEnd>(&answer)) {
    if (!stream->is_broken) Break(end->status);
    return;
  }
  if (const auto* failure = std::get_if<SessionFailure>(&answer)) {
    stream->sessions.erase(failure->session_id);
    decoder_.Post([index = index_, failure = *failure](decoder::EngineCore& core) {
      core.OnSessionError(index, failure.session_id, failure.status);
    });
    return;
  }
  decoder::Verdict verdict = Convert(std::get<verifier::Verdict>(answer));
  if (verdict.outcome == decoder::Outcome::kRollback) ++rollback_count_;
  if (!random_.Chance(garbage_per_mille_)) {
    DeliverVerdict(stream, std::move(verdict));
    return;
  }
  ++garbage_count_;
  decoder::Verdict invalid = verdict;
  MakeInvalid(invalid);
  const bool is_known = IsKnown(*stream, invalid.session_id);
  world_.Trace("garbage", {index_, static_cast<int64_t>(invalid.session_id),
                           static_cast<int64_t>(invalid.window_id)});
  if (!is_known && !stream->is_broken && random_.Chance(500)) {
    stream->reaches_decoder = false;
    Break(InternalError("answered for a session that was never opened"));
    return;
  }
  DeliverVerdict(stream, invalid);
  // The true one comes too, late: either it is the second, or the stream is not believed any more.
  if (random_.Chance(500) || !is_known) {
    DeliverVerdict(stream, std::move(verdict));
  }
}

void SimLink::DeliverVerdict(const std::shared_ptr<Stream>& stream, decoder::Verdict verdict) {
  decoder_.Post([index = index_, stream, verdict = std::move(verdict)](decoder::EngineCore& core) {
    FollowVerdict(*stream, verdict);
    core.OnVerdict(index, verdict);
  });
}

void SimLink::MakeInvalid(decoder::Verdict& verdict) {
  switch (random_.Below(11)) {
    case 0:
      ++verdict.committed_length;
      break;
    case 1:
      --verdict.committed_length;
      break;
    case 2:
      ++verdict.epoch;
      break;
    case 3:
      verdict.window_id += 1 + static_cast<uint64_t>(random_.Below(3));
      break;
    case 4:
      verdict.session_id += 1000000;
      break;
    case 5:
      verdict.logprobs.push_back(0.0f);
      break;
    case 6:
      verdict.canonical_token = random_.Chance(500) ? kVocabSize : -1;
      break;
    case 7:
      verdict.outcome = verdict.outcome == decoder::Outcome::kDiscarded
                            ? decoder::Outcome::kCommit
                            : decoder::Outcome::kDiscarded;
      break;
    case 8:
      verdict.top_logprobs.emplace_back();
      break;
    case 9:
      verdict.prompt_logprobs.emplace_back();
      break;
    default:
      verdict.committed_length = std::numeric_limits<int32_t>::max();
      if (!verdict.logprobs.empty()) {
        verdict.logprobs.front() = std::numeric_limits<float>::quiet_NaN();
      } else {
        verdict.logprobs.push_back(0.0f);
      }
      break;
  }
}

void SimLink::FollowVerdict(Stream& stream, const decoder::Verdict& verdict) {
  const auto session = stream.sessions.find(verdict.session_id);
  if (session == stream.sessions.end() || !verdict.canonical_token) return;
  if (verdict.committed_length < 1 || verdict.committed_length > kMaxLength) return;
  std::vector<int32_t>& tokens = session->second.tokens;
  tokens.resize(static_cast<size_t>(verdict.committed_length));
  tokens.back() = *verdict.canonical_token;
}

}  // namespace selfsame::sim
