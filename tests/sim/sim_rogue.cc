#include "tests/sim/sim_rogue.h"

namespace selfsame::sim {

void SimRogue::Start() {
  world_.After(Micros(random_.Below(30000)), [this] {
    if (is_stopped_) return;
    Act();
    Start();
  });
}

void SimRogue::Stop() {
  is_stopped_ = true;
  if (stream_id_) verifier_.CloseStream(*stream_id_);
  stream_id_.reset();
}

void SimRogue::Act() {
  if (!verifier_.is_up()) {
    stream_id_.reset();
    return;
  }
  if (!stream_id_) {
    stream_id_ = verifier_.OpenStream([](const VerifierAnswer&) {}, [this] { stream_id_.reset(); });
  }
  ++message_count_;
  switch (random_.Below(8)) {
    case 0:
      verifier_.CloseStream(*stream_id_);
      stream_id_.reset();
      break;
    case 1:
      verifier_.Post(*stream_id_, SessionClosing{SomeSession()});
      break;
    case 2:
    case 3:
      verifier_.Post(*stream_id_, MakeOpening());
      break;
    default:
      verifier_.Post(*stream_id_, MakeWindow());
      break;
  }
}

verifier::SessionOpening SimRogue::MakeOpening() {
  verifier::SessionOpening opening;
  opening.session_id = SomeSession();
  const int32_t length = random_.Skewed(0, context_limit_ + 2);
  for (int32_t i = 0; i < length; ++i) opening.prompt_token_ids.push_back(SomeToken());
  const int32_t committed = random_.Below(4);
  for (int32_t i = 0; i < committed; ++i) opening.committed_token_ids.push_back(SomeToken());
  opening.temperature = random_.Chance(50) ? -1.0f : 1.0f;
  opening.top_p = random_.Chance(50) ? 2.0f : 1.0f;
  opening.min_p = random_.Chance(50) ? 2.0f : 0.1f;
  opening.max_tokens = random_.Between(0, 2 * context_limit_);
  opening.logit_rules.presence_penalty = random_.Chance(50) ? 3.0f : 1.0f;
  opening.logit_rules.logit_bias = {{SomeToken(), 1.0f}};
  opening.logit_rules.min_tokens = random_.Skewed(0, context_limit_);
  if (random_.Chance(50)) opening.expected_fingerprint = "another";
  if (random_.Chance(500)) opening.stop_token_ids = {kEndToken};
  return opening;
}

verifier::Window SimRogue::MakeWindow() {
  verifier::Window window;
  window.session_id = SomeSession();
  window.window_id = static_cast<uint64_t>(random_.Skewed(0, 20));
  window.epoch = static_cast<uint32_t>(random_.Skewed(0, 3));
  window.first_position = random_.Between(-1, context_limit_ + 2);
  const int32_t size = random_.Skewed(0, 2 * context_limit_);
  for (int32_t i = 0; i < size; ++i) window.candidate_ids.push_back(SomeToken());
  return window;
}

}  // namespace selfsame::sim
