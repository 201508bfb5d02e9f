#include "tests/sim/scenario.h"

#include <algorithm>
#include <chrono>
#include <string>

#include "common/kv/sequence_state.h"
#include "tests/sim/sim_client.h"

namespace selfsame::sim {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kPatience = std::chrono::hours(10);

FaultSetup DrawFaults(Random random) {
  FaultSetup faults;
  faults.cancels = random.Chance(400);
  faults.deadlines = random.Chance(300);
  faults.rogues = random.Chance(250);
  faults.interval = Micros(random.Skewed(5000, 400000));
  if (random.Chance(200)) return faults;
  faults.drops = random.Chance(400);
  faults.stalls = random.Chance(300);
  faults.garbage = random.Chance(250);
  faults.crashes = random.Chance(300);
  faults.drains = random.Chance(250);
  faults.restarts = random.Chance(100);
  faults.floods = random.Chance(100);
  faults.new_fingerprints = random.Chance(100);
  faults.mutes = random.Chance(150);
  return faults;
}

DecoderSetup DrawDecoder(Random random, int32_t context_limit, bool is_patient) {
  DecoderSetup setup;
  setup.context_limit = context_limit;
  setup.kv_block_count = BlocksFor(context_limit) + random.Skewed(0, 5 * BlocksFor(context_limit));
  setup.max_waiting_requests = random.Chance(200) ? random.Between(1, 4) : 1000;
  setup.max_step_time = Micros(random.Skewed(100, 10000));
  setup.cuts_at_random = random.Chance(250);
  setup.windows.window_size = random.Skewed(1, 32);
  setup.windows.first_window_size = random.Between(1, setup.windows.window_size);
  setup.windows.min_idle_window_size = random.Between(1, setup.windows.window_size);
  setup.windows.max_age = milliseconds(random.Skewed(1, 250));
  setup.core.scheduler.max_batch_size = random.Skewed(1, 12);
  setup.core.scheduler.max_batch_tokens =
      setup.core.scheduler.max_batch_size + random.Skewed(0, 64);
  setup.core.scheduler.prefill_chunk = random.Below(setup.core.scheduler.max_batch_tokens + 1);
  setup.core.sessions.window_size = setup.windows.window_size;
  setup.core.sessions.failover_timeout =
      is_patient ? kPatience : milliseconds(random.Skewed(50, 3000));
  setup.core.max_inflight_windows = random.Between(1, 4);
  setup.core.enable_prefix_caching = random.Chance(900);
  // More than a healthy verifier is ever silent for.
  setup.core.sessions.verdict_timeout = milliseconds(random.Between(4000, 20000));
  return setup;
}

VerifierSetup DrawVerifier(Random random, int32_t context_limit) {
  VerifierSetup setup;
  setup.context_limit = context_limit;
  setup.kv_block_count = BlocksFor(context_limit) + random.Skewed(0, 5 * BlocksFor(context_limit));
  setup.max_window_size = random.Skewed(1, 40);
  setup.max_rows = setup.max_window_size + random.Skewed(0, 100);
  setup.max_sessions = random.Skewed(1, 32);
  setup.enable_prefix_caching = random.Chance(900);
  setup.max_wait = Micros(random.Chance(500) ? 0 : random.Skewed(1, 20000));
  setup.max_pass_time = Micros(random.Skewed(100, 20000));
  return setup;
}

std::vector<std::string> DrawStopStrings(Random& random) {
  std::vector<std::string> stops;
  const int32_t count = random.Below(3);
  for (int32_t i = 0; i < count; ++i) {
    std::string stop;
    const int32_t length = random.Between(2, 3);
    for (int32_t j = 0; j < length; ++j) {
      stop += static_cast<char>('a' + random.Below(kLetterCount));
    }
    stops.push_back(std::move(stop));
  }
  return stops;
}

LogitRules DrawLogitRules(Random& random, int32_t max_tokens) {
  LogitRules rules;
  if (random.Chance(300)) rules.repetition_penalty = 1.2f;
  if (random.Chance(300)) rules.presence_penalty = 0.5f;
  if (random.Chance(300)) rules.frequency_penalty = -0.25f;
  if (random.Chance(200)) rules.logit_bias = {{kEndToken, 2.0f}, {kFirstLetter + 1, -100.0f}};
  if (random.Chance(300)) rules.min_tokens = random.Between(0, max_tokens);
  return rules;
}

decoder::GenerationRequest DrawRequest(Random random, int32_t context_limit, uint64_t number,
                                       bool can_be_deterministic) {
  decoder::GenerationRequest request;
  request.request_id = std::to_string(number);
  const int32_t prompt_length = random.Skewed(1, context_limit - 1);
  // Few different prompts, so that requests share beginnings; some differ in a single token.
  const uint64_t family = static_cast<uint64_t>(random.Below(4));
  const int32_t own_from = random.Below(2 * context_limit);
  const int32_t own_at = random.Chance(500) ? random.Below(prompt_length) : -1;
  for (int32_t i = 0; i < prompt_length; ++i) {
    const bool is_shared = i < own_from && i != own_at;
    const uint64_t hash = is_shared ? Combine(family, static_cast<uint64_t>(i)) : random.Next();
    request.prompt_token_ids.push_back(kFirstLetter + static_cast<int32_t>(hash % kLetterCount));
  }
  request.max_tokens = random.Skewed(1, context_limit - prompt_length);
  request.temperature = random.Chance(500) ? 0.0f : 0.7f;
  request.top_k = random.Below(3) * 20;
  request.top_p = random.Chance(500) ? 1.0f : 0.9f;
  request.seed = number * kMismatchKinds + static_cast<uint64_t>(random.Below(kMismatchKinds));
  if (random.Chance(400)) request.stop_strings = DrawStopStrings(random);
  if (random.Chance(800)) request.stop_token_ids.push_back(kEndToken);
  if (random.Chance(100)) request.stop_token_ids.push_back(kFirstLetter);
  request.logprobs = random.Chance(500);
  if (random.Chance(300)) request.priority = random.Between(-3, 3);
  request.is_deterministic = can_be_deterministic && random.Chance(700);
  if (random.Chance(300)) request.min_p = 0.1f;
  if (random.Chance(400)) request.logit_rules = DrawLogitRules(random, request.max_tokens);
  if (random.Chance(200)) request.choice_index = random.Below(4);
  if (request.is_deterministic && random.Chance(50)) {
    request.expected_fingerprint = random.Chance(700) ? "F0" : "none";
  }
  request.stream_candidates = request.is_deterministic && random.Chance(400);
  if (random.Chance(200)) {
    // Another stream has given some of the answer.
    request.resume_token_ids = AnswerOf(request, /*weights=*/0).token_ids;
    request.resume_token_ids.resize(
        static_cast<size_t>(random.Below(static_cast<int32_t>(request.resume_token_ids.size()))));
    if (request.is_deterministic) request.expected_fingerprint = "F0";
  }
  if (request.logprobs && random.Chance(300)) request.top_logprobs = random.Between(1, 3);
  if (random.Chance(200)) request.prompt_logprobs = random.Below(3);
  return request;
}

// The next turn of a conversation: the prompt and the answer of an earlier request, and more.
void ContinueFrom(const decoder::GenerationRequest& earlier, int32_t context_limit, Random random,
                  decoder::GenerationRequest& request) {
  std::vector<int32_t> prompt = earlier.prompt_token_ids;
  const CanonicalAnswer answer = AnswerOf(earlier, /*weights=*/0);
  prompt.insert(prompt.end(), answer.token_ids.begin(), answer.token_ids.end());
  for (int32_t own = random.Below(8); own > 0; --own) {
    prompt.push_back(kFirstLetter + random.Below(kLetterCount));
  }
  prompt.resize(std::min(prompt.size(), static_cast<size_t>(context_limit - 1)));
  request.prompt_token_ids = std::move(prompt);
  request.resume_token_ids.clear();
  const auto length = static_cast<int32_t>(request.prompt_token_ids.size());
  request.max_tokens = random.Skewed(1, context_limit - length);
  LogitRules& rules = request.logit_rules;
  rules.min_tokens = std::min(rules.min_tokens, request.max_tokens);
}

}  // namespace

Scenario DrawScenario(Random random) {
  Scenario scenario;
  scenario.context_limit = random.Skewed(8, 160);
  scenario.faults_end = Micros(random.Skewed(200000, 3000000));
  scenario.faults = DrawFaults(random.Fork());
  scenario.is_patient = !scenario.faults.new_fingerprints && random.Chance(600);
  scenario.link.max_delay = Micros(random.Skewed(0, 20000));
  scenario.link.max_reconnect_delay = Micros(random.Skewed(1000, 200000));
  const int32_t decoder_count = random.Chance(700) ? 1 : random.Between(2, 3);
  const int32_t verifier_count = random.Chance(50)    ? 0
                                 : random.Chance(600) ? 1
                                                      : random.Between(2, 3);
  for (int32_t i = 0; i < decoder_count; ++i) {
    scenario.decoders.push_back(
        DrawDecoder(random.Fork(), scenario.context_limit, scenario.is_patient));
  }
  for (int32_t i = 0; i < verifier_count; ++i) {
    scenario.verifiers.push_back(DrawVerifier(random.Fork(), scenario.context_limit));
  }
  const int32_t request_count = random.Between(2, 24);
  const bool is_rush = random.Chance(300);  // all at once
  for (int32_t i = 0; i < request_count; ++i) {
    Arrival arrival;
    arrival.at = Micros(random.Below(static_cast<int32_t>(scenario.faults_end.count())));
    if (is_rush) arrival.at = Micros(0);
    arrival.decoder = static_cast<size_t>(random.Below(decoder_count));
    arrival.request = DrawRequest(random.Fork(), scenario.context_limit,
                                  static_cast<uint64_t>(i + 1), verifier_count > 0);
    if (i > 0 && random.Chance(400)) {
      const auto earlier = static_cast<size_t>(random.Below(i));
      ContinueFrom(scenario.arrivals[earlier].request, scenario.context_limit, random.Fork(),
                   arrival.request);
    }
    arrival.is_cancelled = scenario.faults.cancels && random.Chance(250);
    arrival.cancelled_after = Micros(random.Skewed(0, 500000));
    scenario.arrivals.push_back(std::move(arrival));
  }
  return scenario;
}

}  // namespace selfsame::sim
