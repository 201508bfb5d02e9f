#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "decoder/client/inference_api.h"
#include "selfsame/v1/inference.pb.h"

namespace selfsame::client {

// What a client does beyond collecting the tokens that stand: follows candidates, and goes on with
// an answer whose stream broke. It stands between the streams and whoever collects the answer, who
// sees one stream of committed chunks without a gap or a repetition. One thread.
class AnswerStream {
 public:
  // `on_candidates` may be null: see Request.
  AnswerStream(v1::GenerateRequest request, TextCallback on_candidates);

  // What to send: the request, and after Resume the one that goes on.
  const v1::GenerateRequest& message() const { return message_; }

  using Collect = absl::FunctionRef<absl::Status(const v1::GenerateResponse&)>;

  // Takes the next event of the stream and gives it to `collect`, perhaps shortened; not so the
  // candidates and Retracts that were asked for, or the Started of a stream that goes on. INTERNAL
  // when the server breaks the protocol, or goes on with another answer.
  absl::Status Take(v1::GenerateResponse response, Collect collect);

  // No more events: candidates are gone.
  void DropCandidates();

  // The stream broke: candidates are gone, and message() goes on after the committed tokens. Those
  // of a deterministic answer's last chunk are asked for again, for they may have been the last of
  // all, and an answer that has ended does not go on. Without has_output() all is asked for, and
  // collected, again.
  void Resume();

  // A committed chunk has come.
  bool has_output() const { return !token_ids_.empty() || !repeated_ids_.empty(); }
  int32_t candidate_count() const { return candidate_count_; }
  int32_t retract_count() const { return retract_count_; }

 private:
  enum class Phase { kBegin, kStarted, kComplete };
  struct Candidate {
    int32_t token_id = 0;
    std::string text;
  };

  int64_t committed_length() const {
    return int64_t{prompt_tokens_} + static_cast<int64_t>(token_ids_.size());
  }
  // The same for one kind of event each: whether it is to be collected.
  absl::StatusOr<bool> Follow(v1::GenerateResponse& response);
  absl::StatusOr<bool> TakeStarted(const v1::Started& started);
  absl::StatusOr<bool> TakeChunk(v1::Chunk& chunk);
  absl::Status TakeCandidate(const v1::Chunk& chunk);
  absl::Status TakeRetract(const v1::Retract& retract);
  // Takes from the chunk what the last stream has given already.
  absl::Status Shorten(v1::Chunk& chunk);
  void ReportCandidates() const;

  v1::GenerateRequest message_;
  const TextCallback on_candidates_;
  Phase phase_ = Phase::kBegin;  // of the present stream
  bool is_resumed_ = false;
  v1::Started started_;  // of the first stream
  int32_t prompt_tokens_ = 0;

  std::vector<int32_t> token_ids_;  // committed ones, of all streams
  // Of token_ids_, those of the last chunk, and their text.
  int32_t last_count_ = 0;
  std::string last_text_;
  // What the stream will give once more.
  std::deque<int32_t> repeated_ids_;
  std::string repeated_text_;

  std::deque<Candidate> candidates_;
  int32_t candidate_count_ = 0;
  int32_t retract_count_ = 0;
};

}  // namespace selfsame::client
