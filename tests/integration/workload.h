#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "selfsame/v1/inference.pb.h"
#include "tests/integration/test_client.h"
#include "tests/testing/tiny_model.h"

namespace selfsame::testing {

// Sanitizers make a token ten times and more as dear: tests that only need many take fewer.
#ifdef SELFSAME_IS_SANITIZED
inline constexpr int kTokenDivisor = 4;
#else
inline constexpr int kTokenDivisor = 1;
#endif

// A random model whose two best logits are nearly tied everywhere, with a tokeniser, on disk. Any
// change in the order of a sum shows in its tokens.
class NearTieModel {
 public:
  static constexpr int kVocabSize = 320;
  static constexpr int kContextLimit = 1024;
  static constexpr int kEosTokenId = 2;

  NearTieModel();
  const std::string& path() const { return dir_.path(); }

 private:
  TempDir dir_;
};

// A small trained model: margins between logits as real ones have them.
std::string TrainedModelDir();

// `count` deterministic requests with logprobs: the beginnings of verses, half of them greedy and
// half seeded; half of either kind with penalties, logit bias, min-p and min_tokens.
std::vector<v1::GenerateRequest> MakeVerseRequests(int count, int max_tokens);

// `count` deterministic requests with logprobs: random prompts of 2 to 120 tokens, half of them
// greedy and half seeded with various temperatures, top-k and top-p; one in four may end early, and
// one in three has penalties and the like.
std::vector<v1::GenerateRequest> MakeRequests(int count, int max_tokens, uint64_t seed = 1);

// The same without the promise.
std::vector<v1::GenerateRequest> MakeOrdinary(std::vector<v1::GenerateRequest> requests);

// Positions 0 to count - 1 in an order that depends on `seed`; 0: in sequence.
std::vector<int> ArrivalOrder(int count, uint64_t seed);

// Sends all requests, `concurrency` at a time, in this order. Results are by index of the request.
std::vector<GenerateResult> ServeAll(TestClient& client,
                                     const std::vector<v1::GenerateRequest>& requests,
                                     const std::vector<int>& order, int concurrency);

// How many results differ in tokens or logprob bits.
int CountDivergences(const std::vector<GenerateResult>& a, const std::vector<GenerateResult>& b);

// Ordinary requests that come one after the other in `concurrency` lanes until the object goes.
class Background {
 public:
  Background(TestClient& client, int concurrency);
  ~Background();

 private:
  struct Lanes;
  std::unique_ptr<Lanes> lanes_;
};

}  // namespace selfsame::testing
