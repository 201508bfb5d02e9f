#include "tests/sim/simulation.h"

#include <algorithm>
#include <map>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/tokenizer/tokenizer.h"
#include "tests/sim/scenario.h"
#include "tests/sim/sim_client.h"
#include "tests/sim/sim_rogue.h"
#include "tests/testing/tiny_model.h"
#include "tests/testing/tiny_tokenizer.h"

namespace selfsame::sim {
namespace {

// From the end of the faults to the end of the last request, at most; in simulated time.
constexpr Micros kLivenessBound = std::chrono::minutes(20);
constexpr int64_t kMaxEvents = 5000000;

const Tokenizer& LetterTokenizer() {
  static const Tokenizer& tokenizer = [&]() -> const Tokenizer& {
    const selfsame::testing::TempDir dir;
    selfsame::testing::WriteTinyTokenizer(dir.path(), kVocabSize);
    auto loaded = Tokenizer::Load(dir.path());
    SELFSAME_CHECK(loaded.ok());
    return *loaded->release();
  }();
  return tokenizer;
}

// What the verifier without rollback does: candidates stand as they are.
verifier::WindowDecision CommitEverything(const verifier::EndRules& rules, int32_t committed_length,
                                          std::span<const int32_t> candidates,
                                          std::span<const SampledToken> canonical) {
  std::vector<SampledToken> agreeing(canonical.begin(), canonical.end());
  for (size_t i = 0; i < agreeing.size(); ++i) agreeing[i].token_id = candidates[i];
  return verifier::DecideWindow(rules, committed_length, candidates, agreeing);
}

class Simulation {
 public:
  explicit Simulation(const SimulationOptions& options)
      : random_(options.seed),
        world_(options.prints_trace),
        scenario_(DrawScenario(random_.Fork())) {
    CreateVerifiers(options);
    CreateDecoders();
    CreateClients();
  }

  SimulationResult Run();

 private:
  void CreateVerifiers(const SimulationOptions& options);
  void CreateDecoders();
  void CreateClients();
  AllowedErrors AllowedFor(const Arrival& arrival) const;
  // Submits what goes on with a client's answer, to the same decoder.
  void Continue(const SimClient& broken, size_t decoder);

  void ScheduleFault();
  void InjectFault();
  void StartVerifier(size_t index, bool may_be_new);
  void StopVerifier(size_t index, bool drains);
  void RestartDecoder(size_t index);
  void EndFaults();
  bool AllEnded() const;
  void RunEvents();
  Counts CountAll() const;
  size_t SomeVerifier() {
    return static_cast<size_t>(random_.Below(static_cast<int32_t>(verifiers_.size())));
  }
  size_t SomeDecoder() {
    return static_cast<size_t>(random_.Below(static_cast<int32_t>(decoders_.size())));
  }

  Random random_;
  World world_;
  const Scenario scenario_;
  std::vector<std::unique_ptr<SimVerifier>> verifiers_;
  // [decoder][verifier]; a decoder that goes closes its sessions.
  std::vector<std::vector<std::unique_ptr<SimLink>>> links_;
  std::vector<std::unique_ptr<SimDecoder>> decoders_;
  std::vector<std::unique_ptr<SimRogue>> rogues_;
  std::vector<std::shared_ptr<SimClient>> clients_;
  bool faults_are_over_ = false;
  bool is_over_ = false;
  Counts counts_;
};

void Simulation::CreateVerifiers(const SimulationOptions& options) {
  for (const VerifierSetup& setup : scenario_.verifiers) {
    const auto index = static_cast<int>(verifiers_.size());
    verifiers_.push_back(std::make_unique<SimVerifier>(
        world_, index, setup,
        options.commits_everything ? verifier::WindowPolicy(CommitEverything)
                                   : verifier::WindowPolicy(verifier::DecideWindow),
        random_.Fork()));
    if (scenario_.faults.rogues) {
      rogues_.push_back(std::make_unique<SimRogue>(world_, *verifiers_.back(),
                                                   scenario_.context_limit, random_.Fork()));
      rogues_.back()->Start();
    }
  }
}

void Simulation::CreateDecoders() {
  for (const DecoderSetup& setup : scenario_.decoders) {
    const auto index = static_cast<int>(decoders_.size());
    decoders_.push_back(
        std::make_unique<SimDecoder>(world_, index, setup, LetterTokenizer(), random_.Fork()));
    links_.emplace_back();
    std::vector<decoder::VerifierLink*> links;
    for (size_t i = 0; i < verifiers_.size(); ++i) {
      links_.back().push_back(std::make_unique<SimLink>(world_, static_cast<int>(i), scenario_.link,
                                                        *decoders_.back(), *verifiers_[i],
                                                        random_.Fork()));
      if (scenario_.faults.garbage) links_.back().back()->set_garbage_per_mille(20);
      links.push_back(links_.back().back().get());
    }
    decoders_.back()->Start(links);
  }
  for (size_t i = 0; i < verifiers_.size(); ++i) StartVerifier(i, /*may_be_new=*/false);
}

void Simulation::CreateClients() {
  for (const Arrival& arrival : scenario_.arrivals) {
    auto client = std::make_shared<SimClient>(world_, *decoders_[arrival.decoder],
                                              clients_.size() + 1, arrival.request);
    client->allowed = AllowedFor(arrival);
    if (scenario_.faults.deadlines && random_.Chance(250)) {
      client->SetDeadline(world_.Now() + arrival.at + Micros(random_.Skewed(0, 2000000)));
    }
    client->on_broken = [this, decoder = arrival.decoder](const SimClient& broken) {
      Continue(broken, decoder);
    };
    clients_.push_back(client);
    world_.After(arrival.at, [client] { client->Submit(client); });
    if (arrival.is_cancelled) {
      world_.After(arrival.at + arrival.cancelled_after, [client] { client->Cancel(); });
    }
  }
}

void Simulation::Continue(const SimClient& broken, size_t decoder) {
  if (is_over_) return;
  auto client = std::make_shared<SimClient>(world_, *decoders_[decoder], clients_.size() + 1,
                                            broken.Continuation());
  client->allowed = broken.allowed;
  client->allowed.failed_precondition = true;  // the fingerprint may be gone
  clients_.push_back(client);
  ++counts_.continuations;
  world_.After(Micros(random_.Below(100000)), [client] { client->Submit(client); });
}

AllowedErrors Simulation::AllowedFor(const Arrival& arrival) const {
  const bool has_small_queue = scenario_.decoders[arrival.decoder].max_waiting_requests <
                               static_cast<int32_t>(scenario_.arrivals.size());
  AllowedErrors allowed;
  allowed.resource_exhausted = has_small_queue;
  if (!arrival.request.is_deterministic) return allowed;
  const FaultSetup& faults = scenario_.faults;
  const bool may_lack_verifier = !scenario_.is_patient;
  allowed.unavailable = may_lack_verifier;
  // Sessions of other clients of the verifier may take all its room.
  const bool shares_verifier = decoders_.size() > 1 || faults.rogues || faults.LosesSessions();
  allowed.resource_exhausted |= may_lack_verifier && shares_verifier;
  allowed.failed_precondition = arrival.request.expected_fingerprint.has_value();
  return allowed;
}

void Simulation::StartVerifier(size_t index, bool may_be_new) {
  if (verifiers_[index]->is_up()) return;
  const bool is_new = may_be_new && scenario_.faults.new_fingerprints && random_.Chance(300);
  verifiers_[index]->Start(is_new ? 1 : 0);
  for (auto& links : links_) links[index]->Start();
}

void Simulation::StopVerifier(size_t index, bool drains) {
  if (!verifiers_[index]->is_up()) return;
  if (drains) {
    ++counts_.drains;
    verifiers_[index]->Drain();
  } else {
    ++counts_.crashes;
    verifiers_[index]->Crash();
  }
  world_.After(Micros(random_.Below(500000)),
               [this, index] { StartVerifier(index, /*may_be_new=*/true); });
}

void Simulation::RestartDecoder(size_t index) {
  ++counts_.restarts;
  // Its connections go with it.
  for (auto& link : links_[index]) link->Drop();
  decoders_[index]->Restart();
}

void Simulation::ScheduleFault() {
  const auto interval = static_cast<int32_t>(scenario_.faults.interval.count());
  world_.After(Micros(1 + random_.Below(interval)), [this] {
    if (faults_are_over_) return;
    InjectFault();
    ScheduleFault();
  });
}

void Simulation::InjectFault() {
  if (verifiers_.empty()) return;
  const FaultSetup& faults = scenario_.faults;
  const size_t decoder = SomeDecoder();
  const size_t verifier = SomeVerifier();
  SimLink& link = *links_[decoder][verifier];
  switch (random_.Below(7)) {
    case 0:
      if (faults.drops) link.Drop();
      break;
    case 1:
      if (faults.stalls) link.Stall(Micros(random_.Skewed(1000, 1000000)));
      break;
    case 2:
      if (faults.crashes) StopVerifier(verifier, /*drains=*/false);
      break;
    case 3:
      if (faults.drains) StopVerifier(verifier, /*drains=*/true);
      break;
    case 4:
      if (faults.restarts) RestartDecoder(decoder);
      break;
    case 5:
      if (faults.mutes) link.Mute();
      break;
    default:
      if (faults.floods) {
        decoders_[decoder]->Post([verifier](decoder::EngineCore& core) {
          core.OnVerifierFlood(static_cast<int>(verifier));
        });
      }
      break;
  }
}

void Simulation::EndFaults() {
  world_.Trace("faults end", {});
  faults_are_over_ = true;
  for (auto& rogue : rogues_) rogue->Stop();
  for (auto& links : links_) {
    for (auto& link : links) link->set_garbage_per_mille(0);
  }
  for (size_t i = 0; i < verifiers_.size(); ++i) StartVerifier(i, /*may_be_new=*/false);
}

bool Simulation::AllEnded() const {
  return std::all_of(clients_.begin(), clients_.end(),
                     [](const auto& client) { return client->has_ended(); });
}

void Simulation::RunEvents() {
  const SteadyTime bound = world_.Now() + scenario_.faults_end + kLivenessBound;
  for (int64_t i = 0; !world_.has_failed() && world_.RunNext(); ++i) {
    if (i > kMaxEvents) world_.Fail("too many events");
    if (world_.Now() <= bound || AllEnded()) continue;
    for (const auto& client : clients_) {
      if (!client->has_ended()) world_.Fail(absl::StrCat("request ", client->id(), " never ends"));
    }
  }
}

SimulationResult Simulation::Run() {
  ScheduleFault();
  world_.After(scenario_.faults_end, [this] { EndFaults(); });
  RunEvents();
  if (!world_.has_failed()) {
    if (!AllEnded()) world_.Fail("nothing more happens, but not all requests have ended");
    for (auto& decoder : decoders_) decoder->CheckEmpty();
    for (auto& verifier : verifiers_) verifier->CheckEmpty();
  }
  is_over_ = true;
  const Counts counts = CountAll();
  return {world_.failure(), world_.trace_hash(), counts};
}

Counts Simulation::CountAll() const {
  Counts counts = counts_;
  counts.requests = static_cast<int64_t>(clients_.size());
  for (const auto& client : clients_) {
    counts.candidates += client->candidate_count();
    counts.retracts += client->retract_count();
    if (!client->has_completed()) continue;
    ++counts.completed;
    if (!client->request().resume_token_ids.empty()) ++counts.resumed_completed;
    if (client->request().is_deterministic) ++counts.deterministic_completed;
  }
  for (const auto& decoder : decoders_) {
    counts.steps += decoder->step_count();
    counts.mismatches += decoder->mismatch_count();
    counts.preemptions += decoder->preemption_count();
    counts.prefix_hits += decoder->prefix_hit_count();
  }
  for (const auto& verifier : verifiers_) {
    const verifier::WorkerStats stats = verifier->totals();
    counts.passes += stats.passes;
    counts.evictions += stats.evictions;
    counts.verifier_prefix_hits += stats.prefix_hits;
  }
  for (const auto& links : links_) {
    for (const auto& link : links) {
      counts.windows += link->window_count();
      counts.rollbacks += link->rollback_count();
      counts.sessions += link->session_count();
      counts.garbage += link->garbage_count();
      counts.streams += link->stream_count();
      counts.mutes += link->mute_count();
    }
  }
  for (const auto& rogue : rogues_) counts.rogue_messages += rogue->message_count();
  return counts;
}

}  // namespace

void Counts::Add(const Counts& other) {
  requests += other.requests;
  completed += other.completed;
  deterministic_completed += other.deterministic_completed;
  steps += other.steps;
  passes += other.passes;
  windows += other.windows;
  mismatches += other.mismatches;
  rollbacks += other.rollbacks;
  sessions += other.sessions;
  evictions += other.evictions;
  preemptions += other.preemptions;
  prefix_hits += other.prefix_hits;
  verifier_prefix_hits += other.verifier_prefix_hits;
  streams += other.streams;
  mutes += other.mutes;
  garbage += other.garbage;
  crashes += other.crashes;
  drains += other.drains;
  restarts += other.restarts;
  rogue_messages += other.rogue_messages;
  candidates += other.candidates;
  retracts += other.retracts;
  continuations += other.continuations;
  resumed_completed += other.resumed_completed;
}

std::string Counts::ToString() const {
  return absl::StrCat(
      "requests ", requests, ", completed ", completed, " (deterministic ", deterministic_completed,
      "), steps ", steps, ", passes ", passes, ", windows ", windows, ", mismatches ", mismatches,
      ", rollbacks ", rollbacks, ", sessions ", sessions, ", evictions ", evictions,
      ", preemptions ", preemptions, ", cached ", prefix_hits, ", cached at verifiers ",
      verifier_prefix_hits, ", streams ", streams, ", mutes ", mutes, ", garbage ", garbage,
      ", crashes ", crashes, ", drains ", drains, ", decoder restarts ", restarts,
      ", rogue messages ", rogue_messages, ", candidates ", candidates, ", retracts ", retracts,
      ", resumed and completed ", resumed_completed, ", continuations ", continuations);
}

SimulationResult RunSimulation(const SimulationOptions& options) {
  return Simulation(options).Run();
}

}  // namespace selfsame::sim
