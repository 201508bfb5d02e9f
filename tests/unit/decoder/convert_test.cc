#include "decoder/convert.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cstdint>

namespace selfsame::decoder {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr int32_t kContextLimit = 100;
constexpr uint64_t kDrawnSeed = 0xfeedfacecafebeef;

RequestDefaults ModelDefaults() {
  GenerationDefaults defaults;
  defaults.eos_token_ids = {2, 7};
  defaults.temperature = 0.6f;
  defaults.top_k = 20;
  return ToRequestDefaults(defaults);
}

GenerationRequest Convert(const v1::GenerateRequest& request) {
  return ToGenerationRequest(request, {5, 6, 7}, ModelDefaults(), kContextLimit, kDrawnSeed);
}

TEST(ToGenerationRequestTest, UnsetFieldsTakeTheModelsDefaultsThenOurs) {
  const GenerationRequest result = Convert(v1::GenerateRequest());
  EXPECT_EQ(result.temperature, 0.6f);
  EXPECT_EQ(result.top_k, 20);
  EXPECT_EQ(result.top_p, 1.0f);
  EXPECT_EQ(result.min_p, 0.0f);
  EXPECT_TRUE(result.logit_rules.is_neutral());
  EXPECT_EQ(result.seed, kDrawnSeed);
  EXPECT_EQ(result.max_tokens, 97);
  EXPECT_THAT(result.stop_token_ids, ElementsAre(2, 7));
  EXPECT_THAT(result.stop_strings, IsEmpty());
  EXPECT_THAT(result.prompt_token_ids, ElementsAre(5, 6, 7));
  EXPECT_FALSE(result.is_deterministic);
  EXPECT_FALSE(result.logprobs);
  EXPECT_FALSE(result.expected_fingerprint.has_value());
}

TEST(ToGenerationRequestTest, ZeroIsAValueNotAnAbsence) {
  v1::GenerateRequest request;
  request.mutable_sampling()->set_temperature(0.0f);
  request.mutable_sampling()->set_top_k(0);
  request.mutable_sampling()->set_seed(0);
  const GenerationRequest result = Convert(request);
  EXPECT_EQ(result.temperature, 0.0f);
  EXPECT_EQ(result.top_k, 0);
  EXPECT_EQ(result.seed, 0u);
}

TEST(ToGenerationRequestTest, CarriesWhatTheRequestSets) {
  v1::GenerateRequest request;
  request.set_is_deterministic(true);
  request.set_logprobs(true);
  request.set_expected_fingerprint("abc");
  request.set_priority(-3);
  request.mutable_sampling()->set_top_p(0.25f);
  request.mutable_stop()->set_max_tokens(12);
  request.mutable_stop()->add_stop("\n\n");
  request.set_stream_candidates(true);
  request.add_resume_token_ids(8);
  request.add_resume_token_ids(9);
  const GenerationRequest result = Convert(request);
  EXPECT_TRUE(result.is_deterministic);
  EXPECT_TRUE(result.logprobs);
  EXPECT_EQ(result.expected_fingerprint, "abc");
  EXPECT_EQ(result.priority, -3);
  EXPECT_EQ(result.top_p, 0.25f);
  EXPECT_EQ(result.max_tokens, 12);
  EXPECT_THAT(result.stop_strings, ElementsAre("\n\n"));
  EXPECT_TRUE(result.stream_candidates);
  EXPECT_THAT(result.resume_token_ids, ElementsAre(8, 9));
  EXPECT_THAT(result.prompt_token_ids, ElementsAre(5, 6, 7));
}

TEST(ToGenerationRequestTest, CarriesWhatTheRequestAsksOfLogits) {
  GenerationDefaults defaults;
  defaults.min_p = 0.1f;
  defaults.repetition_penalty = 1.25f;
  v1::GenerateRequest request;
  const auto convert = [&] {
    return ToGenerationRequest(request, {5}, ToRequestDefaults(defaults), kContextLimit,
                               kDrawnSeed);
  };
  EXPECT_EQ(convert().min_p, 0.1f);
  EXPECT_EQ(convert().logit_rules, (LogitRules{.repetition_penalty = 1.25f}));
  v1::SamplingParams& sampling = *request.mutable_sampling();
  sampling.set_min_p(0.0f);
  sampling.set_repetition_penalty(1.5f);
  sampling.set_presence_penalty(-1.0f);
  sampling.set_frequency_penalty(0.5f);
  (*sampling.mutable_logit_bias())[9] = 4.0f;
  (*sampling.mutable_logit_bias())[2] = -100.0f;
  request.mutable_stop()->set_min_tokens(3);
  EXPECT_EQ(convert().min_p, 0.0f);
  EXPECT_EQ(convert().logit_rules, (LogitRules{.repetition_penalty = 1.5f,
                                               .presence_penalty = -1.0f,
                                               .frequency_penalty = 0.5f,
                                               .logit_bias = {{2, -100.0f}, {9, 4.0f}},
                                               .min_tokens = 3}));
  const v1::ResolvedParams params = ToProto(convert()).params();
  EXPECT_EQ(params.min_p(), 0.0f);
  EXPECT_EQ(params.repetition_penalty(), 1.5f);
  EXPECT_EQ(params.presence_penalty(), -1.0f);
  EXPECT_EQ(params.frequency_penalty(), 0.5f);
  EXPECT_EQ(params.min_tokens(), 3);
}

TEST(ToGenerationRequestTest, StopTokensAreSortedDistinctAndIncludeEndOfSequence) {
  v1::GenerateRequest request;
  for (const int id : {9, 2, 9, 1}) request.mutable_stop()->add_stop_token_ids(id);
  EXPECT_THAT(Convert(request).stop_token_ids, ElementsAre(1, 2, 7, 9));
  request.mutable_stop()->set_ignore_eos(true);
  EXPECT_THAT(Convert(request).stop_token_ids, ElementsAre(1, 2, 9));
}

TEST(StartedTest, TellsEveryResolvedParameter) {
  GenerationRequest request = Convert(v1::GenerateRequest());
  request.request_id = "id";
  const v1::Started started = ToProto(request);
  EXPECT_EQ(started.request_id(), "id");
  EXPECT_EQ(started.prompt_tokens(), 3);
  EXPECT_EQ(started.params().temperature(), 0.6f);
  EXPECT_EQ(started.params().top_k(), 20);
  EXPECT_EQ(started.params().top_p(), 1.0f);
  EXPECT_EQ(started.params().seed(), kDrawnSeed);
  EXPECT_EQ(started.params().max_tokens(), 97);
}

TEST(ChunkTest, KeepsTheBitsOfLogprobs) {
  const float odd = std::bit_cast<float>(0xbf800001u);
  const v1::Chunk chunk = ToProto(ChunkEvent{.first_position = 10,
                                             .token_ids = {1, 2},
                                             .logprobs = {odd, -0.0f},
                                             .text = "ab",
                                             .top_logprobs = {{{1, odd}, {9, -0.0f}}, {}}},
                                  /*choice_index=*/3);
  EXPECT_EQ(chunk.first_position(), 10);
  EXPECT_THAT(chunk.token_ids(), ElementsAre(1, 2));
  ASSERT_EQ(chunk.logprobs_size(), 2);
  EXPECT_EQ(std::bit_cast<uint32_t>(chunk.logprobs(0)), 0xbf800001u);
  EXPECT_EQ(std::bit_cast<uint32_t>(chunk.logprobs(1)), 0x80000000u);
  EXPECT_EQ(chunk.text(), "ab");
  EXPECT_FALSE(chunk.is_candidate());
  EXPECT_EQ(chunk.choice_index(), 3);
  ASSERT_EQ(chunk.top_logprobs_size(), 2);
  EXPECT_THAT(chunk.top_logprobs(0).token_ids(), ElementsAre(1, 9));
  EXPECT_EQ(std::bit_cast<uint32_t>(chunk.top_logprobs(0).logprobs(0)), 0xbf800001u);
  EXPECT_EQ(std::bit_cast<uint32_t>(chunk.top_logprobs(0).logprobs(1)), 0x80000000u);
}

TEST(ChunkTest, CandidatesAreMarkedAndTakenBackByLength) {
  const v1::Chunk chunk = ToProto(ChunkEvent{.first_position = 10,
                                             .token_ids = {1},
                                             .logprobs = {},
                                             .text = "a",
                                             .is_candidate = true},
                                  /*choice_index=*/0);
  EXPECT_TRUE(chunk.is_candidate());
  const v1::Retract retract = ToProto(RetractEvent{.length = 10}, /*choice_index=*/2);
  EXPECT_EQ(retract.length(), 10);
  EXPECT_EQ(retract.choice_index(), 2);
}

TEST(CompleteTest, CarriesCountsSeedAndMatchedStop) {
  CompleteEvent event;
  event.reason = FinishReason::kStop;
  event.stop_string = "END";
  event.prompt_tokens = 1;
  event.output_tokens = 2;
  event.windows = 3;
  event.rollbacks = 4;
  event.rolled_back_tokens = 5;
  event.redecoded_tokens = 6;
  event.cached_prompt_tokens = 32;
  event.verifier_cached_prompt_tokens = 16;
  event.fingerprint = "abc";
  const v1::Complete complete = ToProto(event, 99, /*choice_index=*/5);
  EXPECT_EQ(complete.choice_index(), 5);
  EXPECT_EQ(complete.finish_reason(), v1::FINISH_REASON_STOP);
  EXPECT_EQ(complete.stop_string(), "END");
  EXPECT_EQ(complete.prompt_tokens(), 1);
  EXPECT_EQ(complete.output_tokens(), 2);
  EXPECT_EQ(complete.windows(), 3);
  EXPECT_EQ(complete.rollbacks(), 4);
  EXPECT_EQ(complete.rolled_back_tokens(), 5);
  EXPECT_EQ(complete.redecoded_tokens(), 6);
  EXPECT_EQ(complete.cached_prompt_tokens(), 32);
  EXPECT_EQ(complete.verifier_cached_prompt_tokens(), 16);
  EXPECT_EQ(complete.seed(), 99u);
  EXPECT_EQ(complete.fingerprint(), "abc");
}

TEST(CompleteTest, StopTokenZeroIsTold) {
  CompleteEvent event;
  event.stop_token_id = 0;
  EXPECT_TRUE(ToProto(event, 0, 0).has_stop_token_id());
  event = CompleteEvent();
  event.reason = FinishReason::kLength;
  const v1::Complete complete = ToProto(event, 0, 0);
  EXPECT_EQ(complete.finish_reason(), v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(complete.matched_stop_case(), v1::Complete::MATCHED_STOP_NOT_SET);
}

}  // namespace
}  // namespace selfsame::decoder
