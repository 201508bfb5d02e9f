#include "common/rpc/logprobs.h"

#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "common/limits.h"

namespace selfsame {

v1::TopLogprobs ToProto(const TopLogprobs& top) {
  v1::TopLogprobs proto;
  for (const TokenLogprob& token : top) {
    proto.add_token_ids(token.token_id);
    proto.add_logprobs(token.logprob);
  }
  return proto;
}

v1::PromptLogprobs ToProto(int32_t first_position, std::span<const PromptLogprob> entries) {
  v1::PromptLogprobs proto;
  proto.set_first_position(first_position);
  for (const PromptLogprob& entry : entries) {
    proto.add_logprobs(entry.logprob);
    if (!entry.top.empty()) *proto.add_top_logprobs() = ToProto(entry.top);
  }
  return proto;
}

absl::StatusOr<TopLogprobs> FromProto(const v1::TopLogprobs& proto) {
  if (proto.token_ids_size() != proto.logprobs_size() || proto.token_ids_size() > kMaxTopLogprobs) {
    return InternalError(absl::StrCat("top_logprobs with ", proto.token_ids_size(), " tokens and ",
                                      proto.logprobs_size(), " logprobs"));
  }
  TopLogprobs top;
  top.reserve(static_cast<size_t>(proto.token_ids_size()));
  for (int i = 0; i < proto.token_ids_size(); ++i) {
    if (proto.token_ids(i) < 0 || std::isnan(proto.logprobs(i))) {
      return InternalError("top_logprobs with a negative token or a logprob that is not a number");
    }
    top.push_back({proto.token_ids(i), proto.logprobs(i)});
  }
  return top;
}

absl::StatusOr<std::vector<PromptLogprob>> FromProto(const v1::PromptLogprobs& proto) {
  const int count = proto.logprobs_size();
  if (proto.top_logprobs_size() != 0 && proto.top_logprobs_size() != count) {
    return InternalError(absl::StrCat("prompt_logprobs with ", count, " logprobs and ",
                                      proto.top_logprobs_size(), " top_logprobs"));
  }
  std::vector<PromptLogprob> entries(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) {
    PromptLogprob& entry = entries[static_cast<size_t>(i)];
    entry.logprob = proto.logprobs(i);
    if (std::isnan(entry.logprob)) {
      return InternalError("prompt_logprobs with a logprob that is not a number");
    }
    if (proto.top_logprobs_size() == 0) continue;
    ASSIGN_OR_RETURN(entry.top, FromProto(proto.top_logprobs(i)));
  }
  return entries;
}

}  // namespace selfsame
