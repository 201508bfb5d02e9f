#pragma once

#include <cstdint>
#include <vector>

#include "decoder/engine/types.h"
#include "tests/sim/random.h"
#include "tests/sim/sim_decoder.h"
#include "tests/sim/sim_link.h"
#include "tests/sim/sim_verifier.h"

namespace selfsame::sim {

// Which faults a simulation has. Each seed has some of them only, since many at once hide each
// other.
struct FaultSetup {
  bool drops = false;
  bool stalls = false;
  bool mutes = false;  // a verifier's answers stop coming, and its stream stays
  bool garbage = false;
  bool crashes = false;
  bool drains = false;
  bool restarts = false;          // of decoders
  bool floods = false;            // a decoder finds a verifier's answers too many
  bool new_fingerprints = false;  // a verifier may come back with other weights
  bool rogues = false;
  bool cancels = false;
  bool deadlines = false;
  Micros interval{0};  // at most, between two faults

  // Whether a session can be lost other than by the end of its request.
  bool LosesSessions() const {
    return drops || mutes || garbage || crashes || drains || restarts || floods;
  }
};

struct Arrival {
  Micros at{0};
  size_t decoder = 0;
  decoder::GenerationRequest request;
  bool is_cancelled = false;
  Micros cancelled_after{0};
};

// All of one simulation that is settled before it starts.
struct Scenario {
  int32_t context_limit = 0;
  Micros faults_end{0};
  std::vector<DecoderSetup> decoders;
  std::vector<VerifierSetup> verifiers;
  LinkSetup link;
  FaultSetup faults;
  bool is_patient = false;  // no request may fail for want of a verifier
  std::vector<Arrival> arrivals;
};

Scenario DrawScenario(Random random);

}  // namespace selfsame::sim
