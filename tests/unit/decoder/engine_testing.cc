#include "tests/unit/decoder/engine_testing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <iterator>
#include <numeric>
#include <utility>

#include "common/check.h"
#include "common/errors.h"
#include "common/kv/sequence_state.h"
#include "decoder/engine/output_stream.h"
#include "kernels/cpu/cpu_ops.h"
#include "tests/testing/naive_edits.h"
#include "tests/testing/tiny_tokenizer.h"

namespace selfsame::decoder {
namespace {

std::unique_ptr<Model> Load(const std::string& dir, Schedule schedule) {
  auto ops = CreateCpuOps({.schedule = schedule, .thread_count = 1});
  SELFSAME_CHECK(ops.ok());
  auto model = Model::Load(dir,
                           {.max_rows = kTestMaxRows,
                            .max_logit_rows = kTestMaxLogitRows,
                            .context_limit = kTestContextLimit},
                           *std::move(ops));
  if (!model.ok()) ADD_FAILURE() << model.status();
  SELFSAME_CHECK(model.ok());
  return *std::move(model);
}

// Flips the last mantissa bit of one in sixteen weights.
void PerturbWeights(const std::string& path) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(file)), {});
  uint64_t header_size = 0;
  std::memcpy(&header_size, bytes.data(), sizeof(header_size));
  uint32_t state = 1;
  for (size_t i = sizeof(header_size) + header_size; i + 1 < bytes.size(); i += 2) {
    state = state * 1664525u + 1013904223u;
    if (state >> 28 == 0) bytes[i] = static_cast<char>(bytes[i] ^ 1);
  }
  file.clear();
  file.seekp(0);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  SELFSAME_CHECK(file.flush().good());
}

}  // namespace

TinyWorld& TinyWorld::Get() {
  static TinyWorld& world = *new TinyWorld();
  return world;
}

TinyWorld::TinyWorld() {
  const selfsame::testing::TinyModelOptions options;
  selfsame::testing::WriteTinyModel(canonical_dir_.path(), options);
  selfsame::testing::WriteTinyTokenizer(canonical_dir_.path(), options.vocab_size);
  selfsame::testing::WriteTinyModel(fast_dir_.path(), options);
  PerturbWeights(fast_dir_.path() + "/model.safetensors");
  auto tokenizer = Tokenizer::Load(canonical_dir_.path());
  SELFSAME_CHECK(tokenizer.ok());
  tokenizer_ = *std::move(tokenizer);
  model_ = LoadCanonical();
}

std::unique_ptr<Model> TinyWorld::LoadCanonical() const {
  return Load(canonical_dir_.path(), Schedule::kCanonical);
}

std::unique_ptr<Model> TinyWorld::LoadFast() const {
  return Load(fast_dir_.path(), Schedule::kFast);
}

TinyWorld::Expected TinyWorld::Answer(const GenerationRequest& request) {
  selfsame::testing::LoopParams params;
  params.sampling = {.temperature = request.temperature,
                     .top_k = request.top_k,
                     .top_p = request.top_p,
                     .min_p = request.min_p,
                     .seed = request.seed,
                     .choice_index = request.choice_index,
                     .top_count = request.top_logprobs};
  params.logit_rules = request.logit_rules;
  params.prompt_logprobs = request.prompt_logprobs;
  params.max_tokens = request.max_tokens;
  params.stop_token_ids = request.stop_token_ids;
  const selfsame::testing::Answer answer =
      selfsame::testing::RunCanonicalLoop(*model_, request.prompt_token_ids, params);
  auto output = OutputStream::Create(*tokenizer_, request.stop_strings, request.stop_token_ids,
                                     request.max_tokens, request.logit_rules.min_tokens);
  SELFSAME_CHECK(output.ok());
  Expected expected;
  for (size_t i = 0; i < answer.token_ids.size() && !output->end(); ++i) {
    expected.text += output->Push(answer.token_ids[i]);
    expected.token_ids.push_back(answer.token_ids[i]);
    expected.logprobs.push_back(answer.logprobs[i]);
    if (request.top_logprobs > 0) expected.top_logprobs.push_back(answer.top_logprobs[i]);
  }
  expected.prompt_logprobs = answer.prompt_logprobs;
  expected.reason = output->end()->reason;
  return expected;
}

GenerationRequest TestRequest(int index, int32_t max_tokens) {
  GenerationRequest request;
  request.request_id = std::to_string(index);
  uint32_t state = static_cast<uint32_t>(index) * 7919u + 17u;
  const int length = 1 + (index * 13) % 70;
  for (int i = 0; i < length; ++i) {
    state = state * 1664525u + 1013904223u;
    request.prompt_token_ids.push_back(static_cast<int32_t>(3 + (state >> 8) % 500));
  }
  request.temperature = index % 2 == 0 ? 0.0f : 0.8f;
  request.top_k = index % 4 == 3 ? 40 : 0;
  request.top_p = index % 8 == 5 ? 0.9f : 1.0f;
  request.seed = static_cast<uint64_t>(index) * 1000003u + 5u;
  request.max_tokens = max_tokens;
  request.stop_token_ids = {kTestEos};
  request.is_deterministic = true;
  request.logprobs = true;
  return request;
}

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

CanonicalVerifier::CanonicalVerifier(int index, std::string fingerprint)
    : index_(index),
      fingerprint_(std::move(fingerprint)),
      model_(TinyWorld::Get().LoadCanonical()) {}

void CanonicalVerifier::Connect() {
  {
    MutexLock lock(mutex_);
    is_connected_ = true;
  }
  events_->OnVerifierUp(index_, {.fingerprint = fingerprint_,
                                 .context_limit = kTestContextLimit,
                                 .vocab_size = static_cast<int32_t>(model_->config().vocab_size),
                                 .max_window_size = max_window_size,
                                 .max_sessions = max_sessions});
}

void CanonicalVerifier::Disconnect() {
  {
    MutexLock lock(mutex_);
    is_connected_ = false;
    messages_.clear();
  }
  sessions_.clear();
  events_->OnVerifierDown(index_, UnavailableError("the stream broke"));
}

bool CanonicalVerifier::ProcessOne() {
  Message message;
  {
    MutexLock lock(mutex_);
    if (messages_.empty()) return false;
    message = std::move(messages_.front());
    messages_.pop_front();
  }
  std::visit([this](auto& m) { Process(m); }, message);
  return true;
}

void CanonicalVerifier::Push(Message message) {
  MutexLock lock(mutex_);
  if (is_connected_) messages_.push_back(std::move(message));
}

void CanonicalVerifier::OpenSession(SessionOpening opening) { Push(std::move(opening)); }
void CanonicalVerifier::SubmitWindow(Window window) { Push(std::move(window)); }
void CanonicalVerifier::CloseSession(uint64_t session_id) { Push(Close{session_id}); }
void CanonicalVerifier::Reset(absl::Status) { Push(ResetRequest{}); }

void CanonicalVerifier::Process(const ResetRequest&) {
  ++reset_count;
  Disconnect();
  Connect();
}

void CanonicalVerifier::Process(SessionOpening& opening) {
  ++opening_count;
  openings.push_back(opening);
  const uint64_t id = opening.session_id;
  if (refuse) {
    if (absl::Status status = refuse(opening_count); !status.ok()) {
      events_->OnSessionError(index_, id, status);
      return;
    }
  }
  EXPECT_EQ(opening.expected_fingerprint, fingerprint_);
  auto kv = model_->CreateKvCache(BlocksFor(kTestContextLimit));
  SELFSAME_CHECK(kv.ok());
  Session& session = sessions_[id];
  session.tokens = opening.prompt_token_ids;
  session.tokens.insert(session.tokens.end(), opening.committed_token_ids.begin(),
                        opening.committed_token_ids.end());
  session.opening = std::move(opening);
  session.kv = *std::move(kv);
  Verdict verdict;
  verdict.session_id = id;
  Accept(session, Next(session), verdict);
  verdict.canonical_token = session.tokens.back();
  verdict.prompt_logprobs = std::move(session.prompt_logprobs);
  Send(std::move(verdict));
}

void CanonicalVerifier::Process(Window& window) {
  windows.push_back(window);
  const auto it = sessions_.find(window.session_id);
  if (it == sessions_.end()) return;
  Session& session = it->second;
  EXPECT_LE(static_cast<int32_t>(window.candidate_ids.size()), max_window_size);
  Verdict verdict;
  verdict.session_id = window.session_id;
  verdict.window_id = window.window_id;
  if (window.epoch != session.epoch) {
    verdict.outcome = Outcome::kDiscarded;
    verdict.committed_length = static_cast<int32_t>(session.tokens.size());
  } else {
    EXPECT_EQ(window.first_position, static_cast<int32_t>(session.tokens.size()));
    for (int32_t candidate : window.candidate_ids) {
      SampledToken token = Next(session);
      const bool is_match = !can_roll_back || token.token_id == candidate;
      if (!can_roll_back) token.token_id = candidate;
      Accept(session, token, verdict);
      if (!is_match) {
        verdict.outcome = Outcome::kRollback;
        verdict.canonical_token = token.token_id;
        ++session.epoch;
      }
      if (!is_match || verdict.end != End::kNone) break;
    }
  }
  verdict.epoch = session.epoch;
  Send(std::move(verdict));
}

SampledToken CanonicalVerifier::Next(Session& session) {
  std::vector<int32_t> blocks(static_cast<size_t>(session.kv->block_count()));
  std::iota(blocks.begin(), blocks.end(), 0);
  SampledToken sampled;
  for (; session.kv_length < static_cast<int32_t>(session.tokens.size()); ++session.kv_length) {
    const int32_t position = session.kv_length;
    const int32_t token = session.tokens[static_cast<size_t>(position)];
    const SequenceRows rows{
        .first_row = 0, .row_count = 1, .first_position = position, .block_table = blocks.data()};
    const int32_t logit_row = 0;
    const Pass pass{.row_count = 1,
                    .token_ids = {&token, 1},
                    .positions = {&position, 1},
                    .sequences = {&rows, 1},
                    .logit_rows = {&logit_row, 1}};
    const auto output =
        session.tokens.begin() + static_cast<ptrdiff_t>(session.opening.prompt_token_ids.size());
    const auto edits = selfsame::testing::NaiveEdits(
        session.opening.logit_rules, session.opening.prompt_token_ids,
        {output, session.tokens.end()}, session.opening.stop_token_ids);
    SampleRow sampling{.temperature = session.opening.temperature,
                       .top_k = session.opening.top_k,
                       .top_p = session.opening.top_p,
                       .min_p = session.opening.min_p,
                       .seed = session.opening.seed,
                       .choice_index = session.opening.choice_index,
                       .position = position + 1,
                       .top_count = session.opening.top_logprobs,
                       .edits = edits};
    const auto next = static_cast<size_t>(position) + 1;
    const bool is_of_prompt = session.opening.prompt_logprobs.has_value() &&
                              next < session.opening.prompt_token_ids.size();
    if (is_of_prompt) {
      sampling = {.given_token = session.tokens[next],
                  .top_count = *session.opening.prompt_logprobs};
    }
    SELFSAME_CHECK(model_->Run(pass, *session.kv, {&sampling, 1}, {&sampled, 1}).ok());
    if (is_of_prompt) session.prompt_logprobs.push_back({sampled.logprob, sampled.top});
  }
  return sampled;
}

void CanonicalVerifier::Accept(Session& session, SampledToken token, Verdict& verdict) const {
  session.tokens.push_back(token.token_id);
  verdict.logprobs.push_back(token.logprob);
  if (session.opening.top_logprobs > 0) verdict.top_logprobs.push_back(token.top);
  verdict.committed_length = static_cast<int32_t>(session.tokens.size());
  const auto& stops = session.opening.stop_token_ids;
  const auto output_count = session.tokens.size() - session.opening.prompt_token_ids.size();
  if (std::count(stops.begin(), stops.end(), token.token_id) > 0) {
    verdict.end = End::kStopToken;
  } else if (static_cast<int32_t>(output_count) == session.opening.max_tokens) {
    verdict.end = End::kMaxTokens;
  }
}

void CanonicalVerifier::Send(Verdict verdict) {
  ++verdict_count;
  if (tamper) tamper(verdict);
  events_->OnVerdict(index_, std::move(verdict));
}

uint32_t RandomWindowPolicy::Below(uint32_t bound) {
  state_ = state_ * 1664525u + 1013904223u;
  return (state_ >> 8) % bound;
}

int32_t RandomWindowPolicy::Cut(const WindowQuery& query) {
  const bool must_cut = query.is_paused || query.has_proposed_end;
  if (!must_cut && Below(3) != 0) return 0;
  return static_cast<int32_t>(1 + Below(static_cast<uint32_t>(query.unsubmitted)));
}

}  // namespace selfsame::decoder
