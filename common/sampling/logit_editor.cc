#include "common/sampling/logit_editor.h"

#include <limits>

#include "common/check.h"

namespace selfsame {

LogitEditor::LogitEditor(const LogitRules& rules, std::span<const int32_t> prompt_token_ids,
                         std::span<const int32_t> stop_token_ids)
    : rules_(rules), stop_token_ids_(stop_token_ids.begin(), stop_token_ids.end()) {
  if (rules_.counts_prompt()) {
    for (const int32_t token_id : prompt_token_ids) tokens_[token_id].is_in_prompt = true;
    for (const int32_t token_id : prompt_token_ids) Update(token_id);
  }
  for (const LogitBias& entry : rules_.logit_bias) {
    tokens_[entry.token_id].bias = entry.bias;
    Update(entry.token_id);
  }
  if (rules_.min_tokens == 0) return;
  for (const int32_t token_id : stop_token_ids_) {
    tokens_[token_id].is_stop = true;
    Update(token_id);
  }
}

void LogitEditor::Append(int32_t token_id) {
  output_.push_back(token_id);
  Count(token_id, 1);
}

void LogitEditor::Truncate(int32_t count) {
  SELFSAME_CHECK(count >= 0);
  while (output_count() > count) {
    const int32_t token_id = output_.back();
    output_.pop_back();
    Count(token_id, -1);
  }
}

// The output has just become longer or shorter by that token.
void LogitEditor::Count(int32_t token_id, int32_t difference) {
  if (rules_.counts_output()) {
    tokens_[token_id].count += difference;
    Update(token_id);
  }
  const int32_t longer = difference > 0 ? output_count() : output_count() + 1;
  if (longer != rules_.min_tokens) return;
  for (const int32_t stop_token_id : stop_token_ids_) Update(stop_token_id);
}

LogitEdit LogitEditor::EditOf(int32_t token_id, const Token& token) const {
  LogitEdit edit{.token_id = token_id, .bias = token.bias};
  if (token.is_stop && output_count() < rules_.min_tokens) {
    edit.bias = -std::numeric_limits<float>::infinity();
  }
  if (token.is_in_prompt || token.count > 0) edit.repetition = rules_.repetition_penalty;
  if (token.count > 0) {
    // The product is exact in double.
    edit.penalty = static_cast<float>(double{rules_.frequency_penalty} * token.count +
                                      double{rules_.presence_penalty});
  }
  return edit;
}

void LogitEditor::Update(int32_t token_id) {
  Token& token = tokens_[token_id];
  const LogitEdit edit = EditOf(token_id, token);
  const bool changes_logit = edit != LogitEdit{.token_id = token_id};
  if (token.edit_index >= 0) {
    const auto index = static_cast<size_t>(token.edit_index);
    if (changes_logit) {
      edits_[index] = edit;
      return;
    }
    // The last edit takes the place of the one that goes.
    edits_[index] = edits_.back();
    tokens_[edits_[index].token_id].edit_index = token.edit_index;
    edits_.pop_back();
    token.edit_index = -1;
  } else if (changes_logit) {
    token.edit_index = static_cast<int32_t>(edits_.size());
    edits_.push_back(edit);
  }
}

}  // namespace selfsame
