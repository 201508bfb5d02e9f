#include "tests/integration/canonical_answer.h"

#include <gtest/gtest.h>

#include <utility>

#include "common/sampling/logit_rules.h"
#include "kernels/cpu/cpu_ops.h"
#include "tests/integration/workload.h"

namespace selfsame::testing {

std::unique_ptr<Model> LoadCanonicalModel(int32_t context_limit, int thread_count) {
  auto ops = CreateCpuOps({.schedule = Schedule::kCanonical, .thread_count = thread_count});
  EXPECT_TRUE(ops.ok()) << ops.status();
  auto model = Model::Load(TrainedModelDir(),
                           {.max_rows = 1, .max_logit_rows = 1, .context_limit = context_limit},
                           *std::move(ops));
  EXPECT_TRUE(model.ok()) << model.status();
  return *std::move(model);
}

Answer CanonicalAnswer(Model& model, const std::vector<int32_t>& prompt,
                       const v1::GenerateRequest& request, int32_t choice_index) {
  LoopParams params;
  const v1::SamplingParams& sampling = request.sampling();
  params.sampling.temperature = sampling.temperature();
  params.sampling.top_k = sampling.top_k();
  params.sampling.top_p = sampling.has_top_p() ? sampling.top_p() : 1.0f;
  params.sampling.min_p = sampling.min_p();
  params.sampling.seed = sampling.seed();
  params.sampling.choice_index = choice_index;
  params.sampling.top_count = request.top_logprobs();
  LogitRules& rules = params.logit_rules;
  if (sampling.has_repetition_penalty()) rules.repetition_penalty = sampling.repetition_penalty();
  rules.presence_penalty = sampling.presence_penalty();
  rules.frequency_penalty = sampling.frequency_penalty();
  rules.logit_bias = SortedBiases(sampling.logit_bias());
  rules.min_tokens = request.stop().min_tokens();
  params.max_tokens = request.stop().max_tokens();
  if (!request.stop().ignore_eos()) {
    params.stop_token_ids = model.generation_defaults().eos_token_ids;
  }
  if (request.has_prompt_logprobs()) params.prompt_logprobs = request.prompt_logprobs();
  return RunCanonicalLoop(model, prompt, params);
}

}  // namespace selfsame::testing
