#include "decoder/client/answer_builder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace selfsame::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

using Event = v1::GenerateResponse;
using Events = std::vector<Event>;

constexpr int32_t kPromptTokens = 3;

Event Started() {
  Event event;
  v1::Started& started = *event.mutable_started();
  started.set_request_id("id");
  started.set_prompt_tokens(kPromptTokens);
  started.set_fingerprint("F");
  started.mutable_params()->set_seed(9);
  started.mutable_params()->set_max_tokens(4);
  return event;
}

// The prompt's tokens at positions `first` to `end`: 1, 2 and 3, the letters a, b and c.
Event Echo(int32_t first, int32_t end) {
  Event event;
  v1::Chunk& chunk = *event.mutable_chunk();
  chunk.set_first_position(first);
  for (int32_t i = first; i < end; ++i) {
    chunk.add_token_ids(i + 1);
    chunk.mutable_text()->push_back("abc"[i]);
  }
  return event;
}

// Positions `first` to `end` of the prompt, each with an alternative.
Event PromptLogprobs(int32_t first, int32_t end) {
  Event event;
  v1::PromptLogprobs& piece = *event.mutable_prompt_logprobs();
  piece.set_first_position(first);
  for (int32_t i = first; i < end; ++i) {
    piece.add_logprobs(-0.25f * static_cast<float>(i));
    v1::TopLogprobs& top = *piece.add_top_logprobs();
    top.add_token_ids(70 + i);
    top.add_logprobs(-0.125f);
  }
  return event;
}

// The choice's output tokens of these indices; the i-th is 10 * (choice + 1) + i.
Event Chunk(int32_t choice_index, int32_t first, int32_t end) {
  Event event;
  v1::Chunk& chunk = *event.mutable_chunk();
  chunk.set_choice_index(choice_index);
  chunk.set_first_position(kPromptTokens + first);
  for (int32_t i = first; i < end; ++i) {
    chunk.add_token_ids(10 * (choice_index + 1) + i);
    chunk.add_logprobs(-0.5f * static_cast<float>(i));
    v1::TopLogprobs& top = *chunk.add_top_logprobs();
    top.add_token_ids(80 + i);
    top.add_logprobs(-0.75f);
    chunk.mutable_text()->push_back(static_cast<char>((choice_index == 0 ? 'p' : 'u') + i));
  }
  return event;
}

Event Complete(int32_t choice_index, int32_t output_tokens) {
  Event event;
  v1::Complete& complete = *event.mutable_complete();
  complete.set_choice_index(choice_index);
  complete.set_output_tokens(output_tokens);
  complete.set_fingerprint("F");
  complete.set_finish_reason(v1::FINISH_REASON_LENGTH);
  return event;
}

Event Retract() {
  Event event;
  event.mutable_retract()->set_length(kPromptTokens + 2);
  return event;
}

// Two choices, and all that can be asked for.
Request Everything() {
  Request request;
  request.n = 2;
  request.logprobs = true;
  request.top_logprobs = 1;
  request.prompt_logprobs = 1;
  request.echo = true;
  return request;
}

// What answers it.
Events Whole() {
  return {Started(),      Echo(0, 2),     Echo(2, 3),           PromptLogprobs(1, 2),
          Chunk(1, 0, 1), Chunk(0, 0, 2), PromptLogprobs(2, 3), Chunk(1, 1, 3),
          Complete(1, 3), Chunk(0, 2, 4), Complete(0, 4)};
}

absl::StatusOr<Answer> Build(const Request& request, const Events& events) {
  const TextCallback on_text;
  AnswerBuilder builder(request, on_text);
  for (const Event& event : events) {
    if (absl::Status status = builder.Add(event); !status.ok()) return status;
  }
  return builder.Finish();
}

TEST(AnswerBuilderTest, AWholeAnswerHasEverythingThatWasAskedFor) {
  const Request request = Everything();
  std::string text;
  const TextCallback on_text = [&](std::string_view more) { text += more; };
  AnswerBuilder builder(request, on_text);
  for (const Event& event : Whole()) ASSERT_TRUE(builder.Add(event).ok());
  EXPECT_EQ(builder.token_count(), 4u);
  const auto answer = builder.Finish();
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(text, "abcpqrs") << "the prompt and choice 0";
  EXPECT_THAT(answer->prompt_token_ids, ElementsAre(1, 2, 3));
  EXPECT_EQ(answer->prompt_text, "abc");
  EXPECT_THAT(answer->prompt_logprobs, ElementsAre(PromptLogprob{-0.25f, {{71, -0.125f}}},
                                                   PromptLogprob{-0.5f, {{72, -0.125f}}}));
  EXPECT_THAT(answer->token_ids, ElementsAre(10, 11, 12, 13));
  EXPECT_THAT(answer->logprobs, ElementsAre(0.0f, -0.5f, -1.0f, -1.5f));
  EXPECT_THAT(answer->top_logprobs, SizeIs(4));
  EXPECT_EQ(answer->top_logprobs[3], (TopLogprobs{{83, -0.75f}}));
  EXPECT_EQ(answer->text, "pqrs");
  ASSERT_THAT(answer->other_choices, SizeIs(1));
  const Answer& other = answer->other_choices[0];
  EXPECT_THAT(other.token_ids, ElementsAre(20, 21, 22));
  EXPECT_EQ(other.text, "uvw");
  EXPECT_THAT(other.prompt_logprobs, IsEmpty());
  for (const Answer* choice : {&*answer, &other}) {
    EXPECT_EQ(choice->request_id, "id");
    EXPECT_EQ(choice->seed, 9u);
    EXPECT_EQ(choice->fingerprint, "F");
    EXPECT_EQ(choice->prompt_tokens, kPromptTokens);
    EXPECT_LE(choice->sent, choice->first_token);
    EXPECT_LE(choice->first_token, choice->last_token);
  }
}

TEST(AnswerBuilderTest, CompleteSaysHowItEnded) {
  Event complete = Complete(0, 0);
  complete.mutable_complete()->set_finish_reason(v1::FINISH_REASON_STOP);
  complete.mutable_complete()->set_stop_token_id(7);
  auto answer = Build({}, {Started(), complete});
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->finish_reason, FinishReason::kStop);
  EXPECT_EQ(answer->stop_token_id, 7);
  EXPECT_EQ(answer->stop_string, std::nullopt);
  EXPECT_EQ(answer->first_token, answer->sent) << "none came";
  complete.mutable_complete()->set_stop_string("end");
  answer = Build({}, {Started(), complete});
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->stop_token_id, std::nullopt);
  EXPECT_EQ(answer->stop_string, "end");
}

TEST(AnswerBuilderTest, AfterARestartTheTextOfThePromptIsNotReportedAgain) {
  Request request;
  request.echo = true;
  std::string text;
  const TextCallback on_text = [&](std::string_view more) { text += more; };
  AnswerBuilder builder(request, on_text);
  for (const Events& broken : {Events{}, Events{Started(), Echo(0, 2)},
                               Events{Started(), Echo(0, 1)}, Events{Started()}}) {
    for (const Event& event : broken) ASSERT_TRUE(builder.Add(event).ok());
    builder.Restart();
  }
  EXPECT_EQ(text, "ab");
  ASSERT_TRUE(builder.Add(Started()).ok());
  ASSERT_TRUE(builder.Add(Echo(0, 1)).ok());
  EXPECT_EQ(text, "ab");
  ASSERT_TRUE(builder.Add(Echo(1, 3)).ok());
  EXPECT_EQ(text, "abc");
  Event chunk = Chunk(0, 0, 2);
  chunk.mutable_chunk()->clear_logprobs();
  chunk.mutable_chunk()->clear_top_logprobs();
  ASSERT_TRUE(builder.Add(chunk).ok());
  ASSERT_TRUE(builder.Add(Complete(0, 2)).ok());
  EXPECT_EQ(text, "abcpq");
  const auto answer = builder.Finish();
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_THAT(answer->prompt_token_ids, ElementsAre(1, 2, 3));
  EXPECT_EQ(answer->prompt_text, "abc");
  EXPECT_EQ(answer->text, "pq");
}

TEST(AnswerBuilderTest, AnotherPromptAfterARestartIsInternal) {
  Request request;
  request.echo = true;
  const TextCallback on_text;
  AnswerBuilder builder(request, on_text);
  ASSERT_TRUE(builder.Add(Started()).ok());
  ASSERT_TRUE(builder.Add(Echo(0, 2)).ok());
  builder.Restart();
  ASSERT_TRUE(builder.Add(Started()).ok());
  Event other = Echo(0, 2);
  other.mutable_chunk()->set_text("aB");
  const absl::Status status = builder.Add(other);
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(status.message()), HasSubstr("another prompt"));
}

TEST(AnswerBuilderTest, TheTimeToTheFirstTokenHoldsTheAttemptsThatFailed) {
  const Request request;
  const TextCallback on_text;
  AnswerBuilder builder(request, on_text);
  const SteadyTime begun = std::chrono::steady_clock::now();
  ASSERT_TRUE(builder.Add(Started()).ok());
  while (std::chrono::steady_clock::now() == begun) {
  }
  builder.Restart();
  ASSERT_TRUE(builder.Add(Started()).ok());
  ASSERT_TRUE(builder.Add(Complete(0, 0)).ok());
  const auto answer = builder.Finish();
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_LE(answer->sent, begun);
}

struct BrokenStream {
  const char* name;
  std::function<void(Request&, Events&)> spoil;  // gets Everything and Whole
  const char* says;
};

class BrokenStreamTest : public ::testing::TestWithParam<BrokenStream> {};

TEST_P(BrokenStreamTest, IsInternalAndSaysWhatIsWrong) {
  Request request = Everything();
  Events events = Whole();
  GetParam().spoil(request, events);
  const auto answer = Build(request, events);
  EXPECT_EQ(answer.status().code(), absl::StatusCode::kInternal) << answer.status();
  EXPECT_THAT(std::string(answer.status().message()), HasSubstr(GetParam().says));
}

std::string NameOf(const ::testing::TestParamInfo<BrokenStream>& info) { return info.param.name; }

// Places in Whole.
constexpr int kStarted = 0;
constexpr int kEcho = 1;
constexpr int kPromptLogprobs = 3;
constexpr int kChunk = 5;
constexpr int kComplete = 10;

void Insert(Events& events, int index, const Event& event) {
  events.insert(events.begin() + index, event);
}

void Erase(Events& events, int index) { events.erase(events.begin() + index); }

void AsCandidate(Events& events, int index) {
  events[static_cast<size_t>(index)].mutable_chunk()->set_is_candidate(true);
}

// The same, with one choice.
void OneChoice(Request& request, Events& events) {
  request.n = 1;
  std::erase_if(events, [](const Event& event) {
    return event.chunk().choice_index() == 1 || event.complete().choice_index() == 1;
  });
}

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

INSTANTIATE_TEST_SUITE_P(
    Order, BrokenStreamTest,
    ::testing::Values(
        BrokenStream{"NoEvents", [](Request&, Events& e) { e.clear(); },
                     "without a Complete event"},
        BrokenStream{"UnknownEvent", [](Request&, Events& e) { Insert(e, kChunk, Event()); },
                     "an event this client does not know"},
        BrokenStream{"StartedTwice", [](Request&, Events& e) { Insert(e, kChunk, Started()); },
                     "Started twice"},
        BrokenStream{"ChunkBeforeStarted",
                     [](Request&, Events& e) { Insert(e, kStarted, Chunk(0, 0, 1)); },
                     "a Chunk out of turn"},
        BrokenStream{"CompleteBeforeStarted",
                     [](Request&, Events& e) { Insert(e, kStarted, Complete(0, 0)); },
                     "Complete out of turn"},
        BrokenStream{"PromptLogprobsBeforeStarted",
                     [](Request&, Events& e) { Insert(e, kStarted, PromptLogprobs(1, 2)); },
                     "PromptLogprobs out of turn"},
        BrokenStream{"ChunkAfterComplete", [](Request&, Events& e) { e.push_back(Chunk(0, 4, 5)); },
                     "a Chunk out of turn"},
        BrokenStream{"CompleteTwice", [](Request&, Events& e) { e.push_back(Complete(0, 4)); },
                     "Complete out of turn"},
        BrokenStream{"PromptLogprobsAfterComplete",
                     [](Request&, Events& e) { e.push_back(PromptLogprobs(3, 3)); },
                     "PromptLogprobs out of turn"},
        BrokenStream{"ChunkOfAChoiceThatIsNone",
                     [](Request&, Events& e) { Insert(e, kChunk, Chunk(2, 0, 1)); },
                     "a Chunk out of turn"},
        BrokenStream{"ChunkOfANegativeChoice",
                     [](Request&, Events& e) { Insert(e, kChunk, Chunk(-1, 0, 1)); },
                     "a Chunk out of turn"},
        BrokenStream{"CompleteOfAChoiceThatIsNone",
                     [](Request&, Events& e) { Insert(e, kChunk, Complete(2, 0)); },
                     "Complete out of turn"},
        BrokenStream{"OneChoiceWithoutComplete", [](Request&, Events& e) { Erase(e, kComplete); },
                     "without a Complete event"}),
    NameOf);

INSTANTIATE_TEST_SUITE_P(
    Tokens, BrokenStreamTest,
    ::testing::Values(
        BrokenStream{"Gap", [](Request&, Events& e) { e[kChunk] = Chunk(0, 1, 2); },
                     "a chunk at position 4 instead of 3"},
        BrokenStream{"Repetition", [](Request&, Events& e) { Insert(e, kChunk, e[kChunk]); },
                     "a chunk at position 3 instead of 5"},
        BrokenStream{"FewerThanCounted", [](Request&, Events& e) { e[kComplete] = Complete(0, 5); },
                     "counted 5 output tokens but sent 4"},
        BrokenStream{
            "AnotherFingerprint",
            [](Request&, Events& e) { e[kComplete].mutable_complete()->set_fingerprint("G"); },
            "the fingerprint changed"},
        BrokenStream{"MissingLogprob",
                     [](Request&, Events& e) {
                       e[kChunk].mutable_chunk()->mutable_logprobs()->RemoveLast();
                     },
                     "1 logprobs instead of 2"},
        BrokenStream{"MissingAlternatives",
                     [](Request&, Events& e) { e[kChunk].mutable_chunk()->clear_top_logprobs(); },
                     "0 top_logprobs instead of 2"},
        BrokenStream{"AlternativeNotANumber",
                     [](Request&, Events& e) {
                       e[kChunk].mutable_chunk()->mutable_top_logprobs(1)->set_logprobs(0, kNan);
                     },
                     "a logprob that is not a number"}),
    NameOf);

INSTANTIATE_TEST_SUITE_P(
    Prompt, BrokenStreamTest,
    ::testing::Values(
        BrokenStream{"EchoGap", [](Request&, Events& e) { e[kEcho] = Echo(1, 2); },
                     "the prompt with a gap"},
        BrokenStream{"EchoRepetition", [](Request&, Events& e) { Insert(e, kEcho, Echo(0, 1)); },
                     "the prompt with a gap"},
        BrokenStream{"EchoRunsIntoTheOutput",
                     [](Request&, Events& e) {
                       e[kEcho].mutable_chunk()->mutable_token_ids()->Resize(4, 0);
                     },
                     "or tokens behind it"},
        BrokenStream{"EchoWithoutItsEnd", [](Request&, Events& e) { Erase(e, kEcho + 1); },
                     "did not send the whole prompt"},
        BrokenStream{"LogprobsGap", [](Request&, Events& e) { Erase(e, kPromptLogprobs); },
                     "a gap in the logprobs of the prompt"},
        BrokenStream{"LogprobsWithoutTheirEnd",
                     [](Request&, Events& e) { Erase(e, kPromptLogprobs + 3); },
                     "the logprobs of the whole prompt"},
        BrokenStream{"LogprobNotANumber",
                     [](Request&, Events& e) {
                       e[kPromptLogprobs].mutable_prompt_logprobs()->set_logprobs(0, kNan);
                     },
                     "a logprob that is not a number"}),
    NameOf);

INSTANTIATE_TEST_SUITE_P(
    NotAskedFor, BrokenStreamTest,
    ::testing::Values(
        BrokenStream{"Candidate", [](Request&, Events& e) { AsCandidate(e, kChunk); },
                     "a candidate, though none were asked for"},
        BrokenStream{"CandidateOfAnotherChoice",
                     [](Request&, Events& e) { AsCandidate(e, kChunk - 1); },
                     "a candidate, though none were asked for"},
        BrokenStream{"CandidateOfTheOnlyChoice",
                     [](Request& r, Events& e) {
                       OneChoice(r, e);
                       AsCandidate(e, kChunk - 1);
                     },
                     "a candidate, though none were asked for"},
        BrokenStream{"CandidateInThePrompt", [](Request&, Events& e) { AsCandidate(e, kEcho); },
                     "a candidate, though none were asked for"},
        BrokenStream{"Retract", [](Request&, Events& e) { Insert(e, kComplete, Retract()); },
                     "a Retract, though no candidates were asked for"},
        BrokenStream{"Echo", [](Request& r, Events&) { r.echo = false; },
                     "a chunk at position 0 instead of 3"},
        BrokenStream{"Logprobs", [](Request& r, Events&) { r.logprobs = false; },
                     "1 logprobs instead of 0"},
        BrokenStream{"Alternatives", [](Request& r, Events&) { r.top_logprobs = 0; },
                     "1 top_logprobs instead of 0"},
        BrokenStream{"PromptLogprobs", [](Request& r, Events&) { r.prompt_logprobs.reset(); },
                     "PromptLogprobs out of turn"},
        BrokenStream{"SecondChoice", [](Request& r, Events&) { r.n = 1; }, "a Chunk out of turn"}),
    NameOf);

}  // namespace
}  // namespace selfsame::client
