// Runs simulations from a range of seeds, or one with its trace.
//
//   simulate --seeds=N [--first=S]   seeds S to S + N - 1; S is 1 unless given
//   simulate --seed=S                that seed alone, with a trace
//
// Exits with 1 and names the seed when an invariant is broken.

#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "absl/strings/numbers.h"
#include "tests/sim/simulation.h"

namespace selfsame::sim {
namespace {

volatile uint64_t running_seed = 0;

// A check of the product ends the process; the seed must not be lost with it.
void ReportSeed(int) {
  std::fprintf(stderr, "ABORTED: replay with simulate --seed=%llu\n",
               static_cast<unsigned long long>(running_seed));
  std::_Exit(1);
}

bool Parse(std::string_view argument, std::string_view flag, uint64_t& value) {
  if (argument.substr(0, flag.size()) != flag) return false;
  const std::string_view text = argument.substr(flag.size());
  return absl::SimpleAtoi(absl::string_view(text.data(), text.size()), &value);
}

int Replay(uint64_t seed) {
  running_seed = seed;
  const SimulationResult result = RunSimulation({.seed = seed, .prints_trace = true});
  std::printf("trace %016llx\n%s\n%s\n", static_cast<unsigned long long>(result.trace_hash),
              result.counts.ToString().c_str(),
              result.failure.empty() ? "no invariant broken" : result.failure.c_str());
  return result.failure.empty() ? 0 : 1;
}

int RunMany(uint64_t first, uint64_t count) {
  Counts counts;
  uint64_t failed = 0;
  for (uint64_t seed = first; seed < first + count; ++seed) {
    running_seed = seed;
    const SimulationResult result = RunSimulation({.seed = seed});
    counts.Add(result.counts);
    if (result.failure.empty()) continue;
    ++failed;
    std::printf("FAILED: %s\n  replay with simulate --seed=%llu\n", result.failure.c_str(),
                static_cast<unsigned long long>(seed));
  }
  std::printf("%llu seeds, %llu failed\n%s\n", static_cast<unsigned long long>(count),
              static_cast<unsigned long long>(failed), counts.ToString().c_str());
  return failed == 0 ? 0 : 1;
}

int Main(int argc, char** argv) {
  std::signal(SIGABRT, ReportSeed);
  uint64_t seed = 0;
  uint64_t seeds = 500;
  uint64_t first = 1;
  for (int i = 1; i < argc; ++i) {
    if (Parse(argv[i], "--seed=", seed) || Parse(argv[i], "--seeds=", seeds) ||
        Parse(argv[i], "--first=", first)) {
      continue;
    }
    std::fprintf(stderr, "usage: simulate [--seed=S | --seeds=N [--first=S]]\n");
    return 2;
  }
  return seed != 0 ? Replay(seed) : RunMany(first, seeds);
}

}  // namespace
}  // namespace selfsame::sim

int main(int argc, char** argv) { return selfsame::sim::Main(argc, argv); }
