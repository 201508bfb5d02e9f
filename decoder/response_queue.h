#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "selfsame/v1/inference.pb.h"

namespace selfsame::decoder {

// The messages one client has yet to be sent. Neighbouring chunks of tokens that stand are merged,
// so that a client that reads slowly gets fewer, longer ones. Candidates are only a preview: one
// that reads too slowly for them does without until what it is shown is right again. Not thread
// safe.
class ResponseQueue {
 public:
  explicit ResponseQueue(int64_t limit_bytes) : limit_bytes_(limit_bytes) {}

  // False, with the message dropped, when more than `limit_bytes` would wait.
  [[nodiscard]] bool Push(v1::GenerateResponse response);
  // REQUIRES: not empty.
  v1::GenerateResponse Pop();
  void Clear();
  // Nothing that is pushed later is merged with what waits now.
  void Seal() { is_sealed_ = true; }
  // Lets `size_bytes` more wait.
  void RaiseLimit(int64_t size_bytes) { limit_bytes_ += size_bytes; }

  bool empty() const { return waiting_.empty(); }
  int64_t size_bytes() const { return size_bytes_; }
  int64_t limit_bytes() const { return limit_bytes_; }

 private:
  struct Entry {
    v1::GenerateResponse response;
    int64_t size_bytes = 0;  // at most; merging drops headers
  };

  // Whether an event has a meaning for the client, given what it is shown; notes what it is shown
  // then.
  bool IsOfUse(const v1::GenerateResponse& response);
  int32_t& ShownLength(int32_t choice_index);

  int64_t limit_bytes_;
  std::deque<Entry> waiting_;
  int64_t size_bytes_ = 0;
  // Where the tokens of each choice end that the client has been or will be sent, candidates
  // included; -1: none.
  std::vector<int32_t> shown_lengths_;
  bool is_sealed_ = false;  // the last of `waiting_` takes nothing in
};

}  // namespace selfsame::decoder
