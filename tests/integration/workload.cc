#include "tests/integration/workload.h"

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <iterator>
#include <memory>
#include <numeric>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"

namespace selfsame::testing {
namespace {

// SplitMix64: the same numbers everywhere.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t Next() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  int Below(int limit) { return static_cast<int>(Next() % static_cast<uint64_t>(limit)); }

 private:
  uint64_t state_;
};

constexpr const char* kVerses[] = {
    "In the beginning",
    "And the LORD spake unto Moses, saying",
    "The LORD is my shepherd",
    "And it came to pass in those days",
    "Thus saith the Lord GOD",
    "Blessed are they",
    "Behold, I will",
    "And the children of Israel",
    "Verily, verily, I say unto you",
    "These are the generations of",
    "Then answered the king and said",
    "O give thanks unto the LORD",
};

// Every rule about logits, in turn.
void AddLogitRules(int index, v1::GenerateRequest& request) {
  v1::SamplingParams& sampling = *request.mutable_sampling();
  if (index % 4 == 1) sampling.set_min_p(0.02f);
  if (index % 4 >= 2) sampling.set_repetition_penalty(1.15f);
  if (index % 4 == 2) sampling.set_presence_penalty(0.3f);
  if (index % 4 != 2) sampling.set_frequency_penalty(0.3f);
  if (index % 2 == 1) {
    (*sampling.mutable_logit_bias())[40] = 1.5f;
    (*sampling.mutable_logit_bias())[41] = -100.0f;
  }
  request.mutable_stop()->set_min_tokens(request.stop().max_tokens() / 4);
}

v1::GenerateRequest MakeRequest(int index, int max_tokens, Random& random) {
  v1::GenerateRequest request;
  request.set_is_deterministic(true);
  request.set_logprobs(true);
  const int length = 2 + random.Below(119);
  for (int i = 0; i < length; ++i) {
    request.mutable_prompt_token_ids()->add_ids(3 + random.Below(NearTieModel::kVocabSize - 3));
  }
  v1::SamplingParams& sampling = *request.mutable_sampling();
  if (index % 2 == 0) {
    sampling.set_temperature(0.0f);
  } else {
    sampling.set_temperature(0.5f + 0.25f * static_cast<float>(random.Below(4)));
    sampling.set_top_k(random.Below(3) * 20);
    sampling.set_top_p(1.0f - 0.05f * static_cast<float>(random.Below(4)));
  }
  sampling.set_seed(random.Next());
  request.mutable_stop()->set_max_tokens(max_tokens);
  request.mutable_stop()->set_ignore_eos(index % 4 != 3);
  if (index % 3 == 1) AddLogitRules(index / 3, request);
  return request;
}

}  // namespace

NearTieModel::NearTieModel() {
  TinyModelOptions options;
  options.vocab_size = kVocabSize;
  options.hidden_size = 128;
  options.intermediate_size = 320;
  options.layer_count = 3;
  options.near_tie_rows = 32;
  options.max_position_embeddings = kContextLimit;
  options.eos_token_id = kEosTokenId;
  WriteTinyModel(dir_.path(), options);
  for (const char* file : {"tokenizer.json", "tokenizer_config.json"}) {
    std::filesystem::copy(absl::StrCat(SELFSAME_SOURCE_DIR, "/tests/data/random-llama/", file),
                          absl::StrCat(dir_.path(), "/", file));
  }
}

std::string TrainedModelDir() { return absl::StrCat(SELFSAME_SOURCE_DIR, "/tests/data/tiny-kjv"); }

std::vector<v1::GenerateRequest> MakeVerseRequests(int count, int max_tokens) {
  std::vector<v1::GenerateRequest> requests(count);
  for (int i = 0; i < count; ++i) {
    v1::GenerateRequest& request = requests[i];
    request.set_prompt(kVerses[static_cast<size_t>(i) % std::size(kVerses)]);
    request.set_is_deterministic(true);
    request.set_logprobs(true);
    request.mutable_sampling()->set_temperature(i % 2 == 0 ? 0.0f : 0.9f);
    request.mutable_sampling()->set_top_p(i % 4 == 3 ? 0.95f : 1.0f);
    request.mutable_sampling()->set_seed(100 + static_cast<uint64_t>(i));
    request.mutable_stop()->set_max_tokens(max_tokens);
    request.mutable_stop()->set_ignore_eos(i % 3 != 2);
    if (i % 2 == i / 2 % 2) AddLogitRules(i / 2, request);
  }
  return requests;
}

std::vector<v1::GenerateRequest> MakeRequests(int count, int max_tokens, uint64_t seed) {
  Random random(seed);
  std::vector<v1::GenerateRequest> requests;
  requests.reserve(count);
  for (int i = 0; i < count; ++i) requests.push_back(MakeRequest(i, max_tokens, random));
  return requests;
}

std::vector<v1::GenerateRequest> MakeOrdinary(std::vector<v1::GenerateRequest> requests) {
  for (v1::GenerateRequest& request : requests) request.set_is_deterministic(false);
  return requests;
}

std::vector<int> ArrivalOrder(int count, uint64_t seed) {
  std::vector<int> order(count);
  std::iota(order.begin(), order.end(), 0);
  if (seed == 0) return order;
  Random random(seed);
  for (int i = count - 1; i > 0; --i) std::swap(order[i], order[random.Below(i + 1)]);
  return order;
}

std::vector<GenerateResult> ServeAll(TestClient& client,
                                     const std::vector<v1::GenerateRequest>& requests,
                                     const std::vector<int>& order, int concurrency) {
  std::vector<GenerateResult> results(requests.size());
  std::atomic<size_t> next = 0;
  std::vector<std::thread> lanes;
  for (int lane = 0; lane < concurrency; ++lane) {
    lanes.emplace_back([&] {
      for (size_t i = next++; i < order.size(); i = next++) {
        results[order[i]] = client.Generate(requests[order[i]]);
      }
    });
  }
  for (std::thread& lane : lanes) lane.join();
  return results;
}

int CountDivergences(const std::vector<GenerateResult>& a, const std::vector<GenerateResult>& b) {
  int count = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) count += !IsSameAnswer(a[i], b[i]);
  return count;
}

struct Background::Lanes {
  std::atomic<bool> is_stopping = false;
  std::vector<std::thread> threads;
};

Background::Background(TestClient& client, int concurrency) : lanes_(std::make_unique<Lanes>()) {
  for (int lane = 0; lane < concurrency; ++lane) {
    lanes_->threads.emplace_back([lanes = lanes_.get(), &client, lane] {
      for (uint64_t round = 0; !lanes->is_stopping; ++round) {
        const auto requests = MakeOrdinary(MakeRequests(1, 40, 1000 * (lane + 1) + round));
        CallOptions options;
        options.on_chunk = [lanes](int) { return !lanes->is_stopping; };
        client.Generate(requests[0], options);
      }
    });
  }
}

Background::~Background() {
  lanes_->is_stopping = true;
  for (std::thread& thread : lanes_->threads) thread.join();
}

}  // namespace selfsame::testing
