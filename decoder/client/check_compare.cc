#include "decoder/client/check_compare.h"

#include <algorithm>
#include <bit>
#include <cstdint>

#include "absl/strings/str_cat.h"

namespace selfsame::client {
namespace {

template <typename T, typename Equal>
size_t FirstMismatch(const std::vector<T>& a, const std::vector<T>& b, Equal equal) {
  return std::mismatch(a.begin(), a.end(), b.begin(), b.end(), equal).first - a.begin();
}

bool SameBits(float a, float b) { return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b); }

bool SameTop(const TopLogprobs& a, const TopLogprobs& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const TokenLogprob& x, const TokenLogprob& y) {
                      return x.token_id == y.token_id && SameBits(x.logprob, y.logprob);
                    });
}

// How many output positions have the same logprobs, those of alternatives included where both
// answers have them.
size_t CountSameLogprobs(const Answer& expected, const Answer& actual) {
  const size_t same = FirstMismatch(expected.logprobs, actual.logprobs, SameBits);
  if (expected.top_logprobs.empty() || actual.top_logprobs.empty()) return same;
  return std::min(same, FirstMismatch(expected.top_logprobs, actual.top_logprobs, SameTop));
}

bool SamePrompt(const Answer& expected, const Answer& actual) {
  return std::equal(expected.prompt_logprobs.begin(), expected.prompt_logprobs.end(),
                    actual.prompt_logprobs.begin(), actual.prompt_logprobs.end(),
                    [](const PromptLogprob& a, const PromptLogprob& b) {
                      return SameBits(a.logprob, b.logprob) && SameTop(a.top, b.top);
                    });
}

}  // namespace

std::optional<Difference> FindDifference(const Answer& expected, const Answer& actual) {
  const size_t same_tokens =
      FirstMismatch(expected.token_ids, actual.token_ids, std::equal_to<int32_t>());
  const bool is_prompt_same = SamePrompt(expected, actual);
  const size_t same_logprobs = is_prompt_same ? CountSameLogprobs(expected, actual) : 0;
  Difference difference;
  difference.tokens = same_tokens != std::max(expected.token_ids.size(), actual.token_ids.size());
  difference.logprobs = !is_prompt_same ||
                        same_logprobs != std::max(expected.logprobs.size(), actual.logprobs.size());
  difference.finish = expected.finish_reason != actual.finish_reason ||
                      expected.stop_string != actual.stop_string ||
                      expected.stop_token_id != actual.stop_token_id ||
                      expected.text != actual.text;
  if (!difference.tokens && !difference.logprobs && !difference.finish) return std::nullopt;
  difference.token_position = same_tokens;
  difference.position = difference.logprobs ? std::min(same_tokens, same_logprobs) : same_tokens;
  return difference;
}

std::string Difference::ToString() const {
  const char* what = tokens ? "token ids" : logprobs ? "logprob bits" : "finish or text";
  return absl::StrCat(what, " differ from output position ", position);
}

}  // namespace selfsame::client
