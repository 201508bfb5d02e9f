#include "decoder/response_queue.h"

#include <algorithm>
#include <utility>

#include "common/check.h"

namespace selfsame::decoder {
namespace {

// Whether `next` goes on right where `previous` ends, in the same choice. Candidates come one by
// one, so that each can be taken back with its text.
bool CanMerge(const v1::GenerateResponse& previous, const v1::GenerateResponse& next) {
  return previous.has_chunk() && next.has_chunk() && !previous.chunk().is_candidate() &&
         !next.chunk().is_candidate() &&
         previous.chunk().choice_index() == next.chunk().choice_index() &&
         previous.chunk().first_position() + previous.chunk().token_ids_size() ==
             next.chunk().first_position();
}

void Merge(v1::Chunk& previous, const v1::Chunk& next) {
  previous.mutable_token_ids()->MergeFrom(next.token_ids());
  previous.mutable_logprobs()->MergeFrom(next.logprobs());
  previous.mutable_top_logprobs()->MergeFrom(next.top_logprobs());
  previous.mutable_text()->append(next.text());
}

}  // namespace

bool ResponseQueue::IsOfUse(const v1::GenerateResponse& response) {
  if (response.has_retract()) {
    int32_t& shown_length = ShownLength(response.retract().choice_index());
    if (response.retract().length() >= shown_length) return false;
    shown_length = response.retract().length();
  } else if (response.has_chunk()) {
    const v1::Chunk& chunk = response.chunk();
    int32_t& shown_length = ShownLength(chunk.choice_index());
    const int32_t end = chunk.first_position() + chunk.token_ids_size();
    if (chunk.is_candidate()) {
      const bool follows = shown_length < 0 || chunk.first_position() == shown_length;
      if (!follows || size_bytes_ > limit_bytes_ / 2) return false;
    }
    shown_length = std::max(shown_length, end);
  }
  return true;
}

int32_t& ResponseQueue::ShownLength(int32_t choice_index) {
  const auto index = static_cast<size_t>(choice_index);
  if (index >= shown_lengths_.size()) shown_lengths_.resize(index + 1, -1);
  return shown_lengths_[index];
}

bool ResponseQueue::Push(v1::GenerateResponse response) {
  if (!IsOfUse(response)) return true;
  const auto size_bytes = static_cast<int64_t>(response.ByteSizeLong());
  if (size_bytes_ + size_bytes > limit_bytes_) return false;
  size_bytes_ += size_bytes;
  if (!waiting_.empty() && !is_sealed_ && CanMerge(waiting_.back().response, response)) {
    Merge(*waiting_.back().response.mutable_chunk(), response.chunk());
    waiting_.back().size_bytes += size_bytes;
  } else {
    waiting_.push_back({std::move(response), size_bytes});
    is_sealed_ = false;
  }
  return true;
}

v1::GenerateResponse ResponseQueue::Pop() {
  SELFSAME_CHECK(!waiting_.empty());
  v1::GenerateResponse response = std::move(waiting_.front().response);
  size_bytes_ -= waiting_.front().size_bytes;
  waiting_.pop_front();
  return response;
}

void ResponseQueue::Clear() {
  waiting_.clear();
  size_bytes_ = 0;
}

}  // namespace selfsame::decoder
