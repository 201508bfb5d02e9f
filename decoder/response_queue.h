#pragma once

#include <cstdint>
#include <deque>

#include "selfsame/v1/inference.pb.h"

namespace selfsame::decoder {

// The messages one client has yet to be sent. Neighbouring chunks of tokens that stand are merged,
// so that a client that reads slowly gets fewer, longer ones. Not thread safe.
class ResponseQueue {
 public:
  explicit ResponseQueue(int64_t limit_bytes) : limit_bytes_(limit_bytes) {}

  // False, with the message dropped, when more than `limit_bytes` would wait.
  [[nodiscard]] bool Push(v1::GenerateResponse response);
  // REQUIRES: not empty.
  v1::GenerateResponse Pop();
  void Clear();

  bool empty() const { return waiting_.empty(); }
  int64_t size_bytes() const { return size_bytes_; }

 private:
  struct Entry {
    v1::GenerateResponse response;
    int64_t size_bytes = 0;  // at most; merging drops headers
  };

  const int64_t limit_bytes_;
  std::deque<Entry> waiting_;
  int64_t size_bytes_ = 0;
};

}  // namespace selfsame::decoder
