#include "tests/testing/canonical_loop.h"

#include <algorithm>
#include <numeric>

#include "common/check.h"
#include "common/kv/sequence_state.h"
#include "tests/testing/naive_edits.h"

namespace selfsame::testing {
namespace {

SampledToken RunOneRow(Model& model, KvCache& kv, const std::vector<int32_t>& block_table,
                       int32_t token_id, int32_t position, SampleRow sampling) {
  const SequenceRows sequence{.first_row = 0,
                              .row_count = 1,
                              .first_position = position,
                              .block_table = block_table.data()};
  const int32_t logit_row = 0;
  const Pass pass{.row_count = 1,
                  .token_ids = {&token_id, 1},
                  .positions = {&position, 1},
                  .sequences = {&sequence, 1},
                  .logit_rows = {&logit_row, 1}};
  sampling.position = position + 1;
  SampledToken sampled;
  SELFSAME_CHECK(model.Run(pass, kv, {&sampling, 1}, {&sampled, 1}).ok());
  return sampled;
}

}  // namespace

Answer RunCanonicalLoop(Model& model, const std::vector<int32_t>& prompt,
                        const LoopParams& params) {
  SELFSAME_CHECK(model.ops().schedule() == Schedule::kCanonical && !prompt.empty());
  const int32_t context_limit = model.limits().context_limit;
  auto kv = model.CreateKvCache(BlocksFor(context_limit));
  SELFSAME_CHECK(kv.ok());
  std::vector<int32_t> block_table(static_cast<size_t>((*kv)->block_count()));
  std::iota(block_table.begin(), block_table.end(), 0);

  Answer answer;
  std::vector<int32_t> tokens = prompt;
  for (int32_t position = 0; position + 1 < context_limit; ++position) {
    const auto next = static_cast<size_t>(position) + 1;
    const auto edits =
        NaiveEdits(params.logit_rules, prompt, answer.token_ids, params.stop_token_ids);
    SampleRow sampling = params.sampling;
    sampling.edits = edits;
    if (next < prompt.size() && params.prompt_logprobs) {
      sampling = {.given_token = prompt[next], .top_count = *params.prompt_logprobs};
    }
    const SampledToken sampled =
        RunOneRow(model, **kv, block_table, tokens[next - 1], position, sampling);
    if (next < prompt.size()) {
      if (params.prompt_logprobs) answer.prompt_logprobs.push_back({sampled.logprob, sampled.top});
      continue;
    }
    tokens.push_back(sampled.token_id);
    answer.token_ids.push_back(sampled.token_id);
    answer.logprobs.push_back(sampled.logprob);
    if (params.sampling.top_count > 0) answer.top_logprobs.push_back(sampled.top);
    if (std::count(params.stop_token_ids.begin(), params.stop_token_ids.end(), sampled.token_id) ||
        static_cast<int32_t>(answer.token_ids.size()) == params.max_tokens) {
      break;
    }
  }
  return answer;
}

}  // namespace selfsame::testing
