#pragma once

#include <cstdint>
#include <optional>

#include "tests/sim/random.h"
#include "tests/sim/sim_verifier.h"
#include "tests/sim/world.h"

namespace selfsame::sim {

// A client of a verifier that keeps to no rule: openings and windows with random ids, epochs,
// positions and tokens, on a stream of its own. Nobody else may notice.
class SimRogue {
 public:
  SimRogue(World& world, SimVerifier& verifier, int32_t context_limit, Random random)
      : world_(world), verifier_(verifier), context_limit_(context_limit), random_(random) {}

  // Sends now and again until Stop.
  void Start();
  void Stop();
  int64_t message_count() const { return message_count_; }

 private:
  void Act();
  verifier::SessionOpening MakeOpening();
  verifier::Window MakeWindow();
  uint64_t SomeSession() { return static_cast<uint64_t>(1 + random_.Below(6)); }
  int32_t SomeToken() { return random_.Chance(20) ? random_.Between(-2, 600) : kFirstLetter; }

  World& world_;
  SimVerifier& verifier_;
  const int32_t context_limit_;
  Random random_;
  std::optional<uint64_t> stream_id_;
  bool is_stopped_ = false;
  int64_t message_count_ = 0;
};

}  // namespace selfsame::sim
