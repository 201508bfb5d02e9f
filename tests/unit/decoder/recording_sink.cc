#include "tests/unit/decoder/recording_sink.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

namespace selfsame::decoder {

void RecordingSink::OnStarted(const StartedEvent& event) {
  EXPECT_FALSE(started.has_value());
  EXPECT_TRUE(chunks.empty());
  started = event;
}

void RecordingSink::OnPromptLogprobs(PromptLogprobsEvent event) {
  EXPECT_TRUE(started.has_value());
  EXPECT_TRUE(chunks.empty());
  EXPECT_FALSE(event.entries.empty());
  EXPECT_EQ(event.first_position, 1 + static_cast<int32_t>(prompt_logprobs.size()));
  prompt_logprobs.insert(prompt_logprobs.end(), event.entries.begin(), event.entries.end());
  ++prompt_piece_count;
}

void RecordingSink::OnChunk(ChunkEvent event) {
  EXPECT_TRUE(started.has_value());
  EXPECT_FALSE(is_done());
  EXPECT_FALSE(event.token_ids.empty());
  if (committed_length_ < 0) committed_length_ = event.first_position;
  if (event.is_candidate) {
    AddCandidate(event);
    return;
  }
  CommitCandidates(event);
  if (!chunks.empty()) {
    const ChunkEvent& last = chunks.back();
    EXPECT_EQ(event.first_position,
              last.first_position + static_cast<int32_t>(last.token_ids.size()));
  }
  token_ids.insert(token_ids.end(), event.token_ids.begin(), event.token_ids.end());
  logprobs.insert(logprobs.end(), event.logprobs.begin(), event.logprobs.end());
  top_logprobs.insert(top_logprobs.end(), event.top_logprobs.begin(), event.top_logprobs.end());
  text += event.text;
  chunks.push_back(std::move(event));
  MutexLock lock(mutex_);
  token_count_ = token_ids.size();
  changed_.NotifyAll();
}

void RecordingSink::AddCandidate(const ChunkEvent& event) {
  EXPECT_EQ(event.first_position, committed_length_ + static_cast<int32_t>(candidates.size()));
  EXPECT_EQ(event.token_ids.size(), 1u);
  EXPECT_TRUE(event.logprobs.empty());
  candidates.push_back({event.token_ids.at(0), event.text});
  ++candidate_count;
}

void RecordingSink::CommitCandidates(const ChunkEvent& event) {
  EXPECT_EQ(event.first_position, committed_length_);
  std::string shown;
  for (const int32_t token_id : event.token_ids) {
    ++committed_length_;
    if (candidates.empty()) continue;
    EXPECT_EQ(token_id, candidates.front().token_id) << "a candidate changed without a retract";
    shown += candidates.front().text;
    candidates.pop_front();
  }
  EXPECT_EQ(event.text.substr(0, shown.size()), shown);
}

void RecordingSink::OnRetract(const RetractEvent& event) {
  EXPECT_FALSE(is_done());
  const int32_t kept = event.length - committed_length_;
  EXPECT_GE(kept, 0);
  EXPECT_LT(kept, static_cast<int32_t>(candidates.size()));
  while (static_cast<int32_t>(candidates.size()) > std::max(kept, 0)) candidates.pop_back();
  ++retract_count;
}

std::string RecordingSink::shown_text() const {
  std::string shown = text;
  for (const Candidate& candidate : candidates) shown += candidate.text;
  return shown;
}

void RecordingSink::OnComplete(const CompleteEvent& event) {
  EXPECT_TRUE(started.has_value());
  EXPECT_EQ(event.prompt_tokens + event.output_tokens, committed_length_);
  EXPECT_TRUE(candidates.empty()) << "neither committed nor taken back";
  complete = event;
  End();
}

void RecordingSink::OnError(const absl::Status& error) {
  EXPECT_FALSE(error.ok());
  status = error;
  End();
}

void RecordingSink::End() {
  MutexLock lock(mutex_);
  EXPECT_FALSE(is_done_) << "a second last event";
  is_done_ = true;
  changed_.NotifyAll();
}

bool RecordingSink::is_done() const {
  MutexLock lock(mutex_);
  return is_done_;
}

void RecordingSink::WaitUntilDone() {
  MutexLock lock(mutex_);
  while (!is_done_) changed_.Wait(mutex_);
}

void RecordingSink::WaitForTokens(size_t count) {
  MutexLock lock(mutex_);
  while (!is_done_ && token_count_ < count) changed_.Wait(mutex_);
}

}  // namespace selfsame::decoder
