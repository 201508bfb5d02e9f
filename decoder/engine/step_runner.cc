#include "decoder/engine/step_runner.h"

#include <algorithm>
#include <utility>

#include "common/check.h"
#include "common/errors.h"

namespace selfsame::decoder {

StepRunner::StepRunner(ForwardModel& model, KvCache& kv, std::vector<int32_t> rungs)
    : model_(model), kv_(kv), rungs_(std::move(rungs)) {
  const auto max_rows = static_cast<size_t>(model.limits().max_rows);
  const auto max_logit_rows = static_cast<size_t>(model.limits().max_logit_rows);
  token_ids_.reserve(max_rows);
  positions_.reserve(max_rows);
  sequences_.reserve(max_rows);
  logit_rows_.reserve(max_logit_rows);
  sampling_.reserve(max_logit_rows);
  sampled_.reserve(max_logit_rows);
}

void StepRunner::AddRows(RequestRows& rows) {
  Request& request = *rows.request;
  const SequenceState& state = *request.schedule.state;
  SequenceRows sequence;
  sequence.first_row = static_cast<int32_t>(token_ids_.size());
  sequence.row_count = rows.row_count;
  sequence.first_position = state.length();
  sequence.block_table = state.block_table();
  sequences_.push_back(sequence);
  for (int32_t i = 0; i < rows.row_count; ++i) {
    const int32_t position = state.length() + i;
    if (request.NeedsPromptLogprob(position)) {
      logit_rows_.push_back(static_cast<int32_t>(token_ids_.size()));
      sampling_.push_back({.given_token = request.TokenAt(position + 1),
                           .top_count = *request.params.prompt_logprobs});
      ++rows.prompt_logprob_count;
    }
    token_ids_.push_back(request.TokenAt(position));
    positions_.push_back(position);
  }
  if (!rows.is_sampled) return;
  logit_rows_.push_back(static_cast<int32_t>(token_ids_.size()) - 1);
  SampleRow sample;
  sample.temperature = request.params.temperature;
  sample.top_k = request.params.top_k;
  sample.top_p = request.params.top_p;
  sample.min_p = request.params.min_p;
  sample.seed = request.params.seed;
  sample.choice_index = request.params.choice_index;
  // A candidate needs none for the client: what counts is what the verifier says.
  if (!request.verification) sample.top_count = request.params.top_logprobs;
  if (request.verification && request.verification->wants_margins) sample.top_count = 2;
  sample.position = state.length() + rows.row_count;
  sample.edits = request.NextEdits();
  sampling_.push_back(sample);
}

absl::Status StepRunner::Run(std::span<RequestRows> rows) {
  token_ids_.clear();
  positions_.clear();
  sequences_.clear();
  logit_rows_.clear();
  sampling_.clear();
  for (RequestRows& request_rows : rows) AddRows(request_rows);
  sampled_.resize(sampling_.size());

  const auto rung =
      std::lower_bound(rungs_.begin(), rungs_.end(), static_cast<int32_t>(token_ids_.size()));
  if (rung != rungs_.end()) {
    token_ids_.resize(static_cast<size_t>(*rung), 0);
    positions_.resize(static_cast<size_t>(*rung), 0);
  }
  Pass pass;
  pass.row_count = static_cast<int32_t>(token_ids_.size());
  pass.token_ids = token_ids_;
  pass.positions = positions_;
  pass.sequences = sequences_;
  pass.logit_rows = logit_rows_;
  SELFSAME_CHECK(pass.row_count <= model_.limits().max_rows);
  SELFSAME_CHECK(static_cast<int32_t>(logit_rows_.size()) <= model_.limits().max_logit_rows);
  RETURN_IF_ERROR(model_.Run(pass, kv_, sampling_, sampled_));

  for (const RequestRows& request_rows : rows) {
    SequenceState& state = *request_rows.request->schedule.state;
    state.Advance(state.length() + request_rows.row_count);
  }
  return absl::OkStatus();
}

}  // namespace selfsame::decoder
