#include "tests/unit/decoder/engine_testing.h"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <iterator>
#include <utility>

#include "common/check.h"
#include "decoder/engine/output_stream.h"
#include "kernels/cpu/cpu_ops.h"
#include "tests/testing/canonical_loop.h"
#include "tests/testing/tiny_tokenizer.h"

namespace selfsame::decoder {
namespace {

std::unique_ptr<Ops> MakeOps(Schedule schedule) {
  auto ops = CreateCpuOps({.schedule = schedule, .thread_count = 1});
  SELFSAME_CHECK(ops.ok());
  return *std::move(ops);
}

std::unique_ptr<Model> Load(const std::string& dir, std::unique_ptr<Ops> ops) {
  auto model = Model::Load(dir,
                           {.max_rows = kTestMaxRows,
                            .max_logit_rows = kTestMaxLogitRows,
                            .context_limit = kTestContextLimit},
                           std::move(ops));
  if (!model.ok()) ADD_FAILURE() << model.status();
  SELFSAME_CHECK(model.ok());
  return *std::move(model);
}

// Flips the last mantissa bit of one in sixteen weights.
void PerturbWeights(const std::string& path) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(file)), {});
  uint64_t header_size = 0;
  std::memcpy(&header_size, bytes.data(), sizeof(header_size));
  uint32_t state = 1;
  for (size_t i = sizeof(header_size) + header_size; i + 1 < bytes.size(); i += 2) {
    state = state * 1664525u + 1013904223u;
    if (state >> 28 == 0) bytes[i] = static_cast<char>(bytes[i] ^ 1);
  }
  file.clear();
  file.seekp(0);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  SELFSAME_CHECK(file.flush().good());
}

}  // namespace

TinyWorld& TinyWorld::Get() {
  static TinyWorld& world = *new TinyWorld();
  return world;
}

TinyWorld::TinyWorld() {
  const selfsame::testing::TinyModelOptions options;
  selfsame::testing::WriteTinyModel(canonical_dir_.path(), options);
  selfsame::testing::WriteTinyTokenizer(canonical_dir_.path(), options.vocab_size);
  selfsame::testing::WriteTinyModel(fast_dir_.path(), options);
  PerturbWeights(fast_dir_.path() + "/model.safetensors");
  auto tokenizer = Tokenizer::Load(canonical_dir_.path());
  SELFSAME_CHECK(tokenizer.ok());
  tokenizer_ = *std::move(tokenizer);
  model_ = LoadCanonical();
}

std::unique_ptr<Model> TinyWorld::LoadCanonical() const {
  return Load(canonical_dir_.path(), MakeOps(Schedule::kCanonical));
}

std::unique_ptr<Model> TinyWorld::LoadFast() const {
  return Load(fast_dir_.path(), MakeOps(Schedule::kFast));
}

std::unique_ptr<Model> TinyWorld::LoadFast(testing::ControlledOps*& ops) const {
  auto controlled = std::make_unique<testing::ControlledOps>(MakeOps(Schedule::kFast));
  ops = controlled.get();
  return Load(fast_dir_.path(), std::move(controlled));
}

TinyWorld::Expected TinyWorld::Answer(const GenerationRequest& request) {
  selfsame::testing::LoopParams params;
  params.sampling = {.temperature = request.temperature,
                     .top_k = request.top_k,
                     .top_p = request.top_p,
                     .min_p = request.min_p,
                     .seed = request.seed,
                     .choice_index = request.choice_index,
                     .top_count = request.top_logprobs};
  params.logit_rules = request.logit_rules;
  params.prompt_logprobs = request.prompt_logprobs;
  params.max_tokens = request.max_tokens;
  params.stop_token_ids = request.stop_token_ids;
  const selfsame::testing::Answer answer =
      selfsame::testing::RunCanonicalLoop(*model_, request.prompt_token_ids, params);
  auto output = OutputStream::Create(*tokenizer_, request.stop_strings, request.stop_token_ids,
                                     request.max_tokens, request.logit_rules.min_tokens);
  SELFSAME_CHECK(output.ok());
  Expected expected;
  for (size_t i = 0; i < answer.token_ids.size() && !output->end(); ++i) {
    expected.text += output->Push(answer.token_ids[i]);
    expected.token_ids.push_back(answer.token_ids[i]);
    expected.logprobs.push_back(answer.logprobs[i]);
    if (request.top_logprobs > 0) expected.top_logprobs.push_back(answer.top_logprobs[i]);
  }
  expected.prompt_logprobs = answer.prompt_logprobs;
  expected.reason = output->end()->reason;
  return expected;
}

GenerationRequest TestRequest(int index, int32_t max_tokens) {
  GenerationRequest request;
  request.request_id = std::to_string(index);
  uint32_t state = static_cast<uint32_t>(index) * 7919u + 17u;
  const int length = 1 + (index * 13) % 70;
  for (int i = 0; i < length; ++i) {
    state = state * 1664525u + 1013904223u;
    request.prompt_token_ids.push_back(static_cast<int32_t>(3 + (state >> 8) % 500));
  }
  request.temperature = index % 2 == 0 ? 0.0f : 0.8f;
  request.top_k = index % 4 == 3 ? 40 : 0;
  request.top_p = index % 8 == 5 ? 0.9f : 1.0f;
  request.seed = static_cast<uint64_t>(index) * 1000003u + 5u;
  request.max_tokens = max_tokens;
  request.stop_token_ids = {kTestEos};
  request.is_deterministic = true;
  request.logprobs = true;
  return request;
}

uint32_t RandomWindowPolicy::Below(uint32_t bound) {
  state_ = state_ * 1664525u + 1013904223u;
  return (state_ >> 8) % bound;
}

int32_t RandomWindowPolicy::Cut(const WindowQuery& query) {
  const bool must_cut = query.is_paused || query.has_proposed_end;
  if (!must_cut && Below(3) != 0) return 0;
  return static_cast<int32_t>(1 + Below(static_cast<uint32_t>(query.unsubmitted)));
}

}  // namespace selfsame::decoder
