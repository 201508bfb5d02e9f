#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "decoder/client/inference_api.h"
#include "selfsame/v1/inference.pb.h"

namespace selfsame::client {

// Builds an Answer from the events of one stream and holds the server to the protocol. Of several
// streams that go on with one answer, and of candidates, it takes what AnswerStream makes of them.
// One thread.
class AnswerBuilder {
 public:
  // `on_text` may be null: see InferenceApi::Generate. Both must outlive the builder.
  AnswerBuilder(const Request& request, const TextCallback& on_text);

  // INTERNAL when the server breaks the protocol or sends what was not asked for; the answer is
  // then of no use.
  absl::Status Add(const v1::GenerateResponse& response);

  // The stream broke, and another brings everything from the beginning: forgets what has come, but
  // not when the first stream was sent, nor what `on_text` has of the prompt, which it does not get
  // again. REQUIRES: no output token has come.
  void Restart();

  // Output tokens of choice 0 so far.
  size_t token_count() const { return choices_.front().token_ids.size(); }

  // All choices have ended: nothing more is to come.
  bool is_complete() const;

  // The answer, once the stream has ended well. INTERNAL when something that was asked for has not
  // come. No call may follow.
  absl::StatusOr<Answer> Finish();

 private:
  absl::Status AddStarted(const v1::Started& started);
  absl::Status AddPromptLogprobs(const v1::PromptLogprobs& piece);
  absl::Status AddChunk(const v1::Chunk& chunk);
  absl::Status AddEcho(const v1::Chunk& chunk, Answer& choice);
  absl::Status AddComplete(const v1::Complete& complete);
  // The choice an event is of. Null when it may not have any now.
  Answer* Find(int32_t choice_index);

  const Request& request_;
  const TextCallback& on_text_;
  bool started_ = false;
  std::string reported_prompt_;    // what on_text has of the prompt, of all streams
  std::vector<Answer> choices_;    // [n]
  std::vector<bool> is_complete_;  // [n]
};

}  // namespace selfsame::client
