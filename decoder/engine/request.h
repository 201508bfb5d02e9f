#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/sampling/logit_editor.h"
#include "decoder/engine/output_stream.h"
#include "decoder/engine/scheduler.h"
#include "decoder/engine/speculation.h"
#include "decoder/engine/types.h"

namespace selfsame::decoder {

// What only a deterministic request has: its candidates, and its way to a verifier.
struct Verification {
  explicit Verification(SpeculationParams params) : speculation(std::move(params)) {}

  bool has_session() const { return speculation.session_id() != 0; }

  Speculation speculation;
  // The output as it would be if every candidate were committed: proposes an end where a stop
  // string is completed, and gives candidates their text. Only for requests with stop strings or
  // stream_candidates.
  std::optional<OutputStream> lookahead;
  bool wants_margins = false;           // by how much a candidate leads the next token
  bool has_doubt = false;               // an unsubmitted candidate was nearly another token
  SteadyTime oldest_unsubmitted;        // when the first unsubmitted candidate was decoded
  SteadyTime opened_at;                 // the session
  std::deque<SteadyTime> submitted_at;  // of each window in flight, oldest first

  int verifier = -1;        // where the session is, while there is one
  std::string fingerprint;  // of the first verifier; every later one must have it too
  std::optional<int32_t> cached_prompt_tokens;  // that the first session's verifier had
  // Since when no verifier has served the request; it fails when this has lasted too long.
  std::optional<SteadyTime> unserved_since;
  SteadyTime retry_at;  // no session is opened before
  int refused_by = -1;  // the verifier that last refused or gave up a session, until a verdict
  std::chrono::milliseconds backoff{0};
  absl::Status last_error;
};

// One request from Submit to its last event.
struct Request {
  Request(uint64_t id, GenerationRequest params, std::shared_ptr<GenerationSink> sink,
          OutputStream output)
      : id(id), params(std::move(params)), sink(std::move(sink)), output(std::move(output)) {
    const GenerationRequest& own = this->params;
    if (own.logit_rules.is_neutral()) return;
    editor.emplace(own.logit_rules, own.prompt_token_ids, own.stop_token_ids);
  }

  int32_t prompt_length() const { return static_cast<int32_t>(params.prompt_token_ids.size()); }
  // Where the first token of this stream stands.
  int32_t stream_start() const {
    return prompt_length() + static_cast<int32_t>(params.resume_token_ids.size());
  }
  int32_t length() const {
    return verification ? verification->speculation.length()
                        : prompt_length() + static_cast<int32_t>(ordinary_output.size());
  }
  // REQUIRES: position < length().
  int32_t TokenAt(int32_t position) const {
    if (position < prompt_length()) return params.prompt_token_ids[static_cast<size_t>(position)];
    const auto index = static_cast<size_t>(position - prompt_length());
    return verification ? verification->speculation.output()[index] : ordinary_output[index];
  }

  // Tokens that will not change any more.
  int32_t settled_length() const {
    return verification ? verification->speculation.committed_length() : length();
  }
  // An ordinary request's prompt logprobs are still missing: the rows that give them must run,
  // whatever KV there is to be had without. A deterministic one's come from the verifier.
  bool needs_all_prompt_rows() const { return NeedsPromptLogprob(prompt_length() - 2); }
  // The row at `position` gives the logprob of the next token of the prompt, and nobody has it yet.
  bool NeedsPromptLogprob(int32_t position) const {
    return !verification && params.prompt_logprobs && position + 1 < prompt_length() &&
           position >= prompt_logprob_count;
  }

  // The edits for the token at position length(), valid until the next token.
  std::span<const LogitEdit> NextEdits() {
    if (!editor) return {};
    while (editor->output_count() < length() - prompt_length()) {
      editor->Append(TokenAt(prompt_length() + editor->output_count()));
    }
    return editor->edits();
  }

  uint64_t id;
  GenerationRequest params;
  std::shared_ptr<GenerationSink> sink;
  OutputStream output;  // over the tokens that stand
  ScheduledRequest schedule;
  SteadyTime arrived_at;
  SteadyTime last_token_at;  // when tokens last stood; REQUIRES: output has some
  uint64_t last_step = 0;    // number of the last step with rows of this request
  bool has_started = false;  // OnStarted was called
  int32_t admission_count = 0;
  int32_t cached_prompt_tokens = 0;      // found in the prefix cache before the first preemption
  std::vector<int32_t> ordinary_output;  // of a request without verification
  int32_t prompt_logprob_count = 0;      // delivered, from position 1 on
  std::optional<Verification> verification;
  // Of a request that edits logits: follows the output, and must be truncated with it.
  std::optional<LogitEditor> editor;
};

}  // namespace selfsame::decoder
