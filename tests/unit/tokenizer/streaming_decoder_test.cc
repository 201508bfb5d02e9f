#include "common/tokenizer/streaming_decoder.h"

#include <gtest/gtest.h>

#include <random>

namespace selfsame {
namespace {

class StreamingDecoderTest : public testing::Test {
 protected:
  void SetUp() override {
    auto loaded = Tokenizer::Load(SELFSAME_SOURCE_DIR "/tests/data/tokenizers/gpt2");
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    tokenizer_ = *std::move(loaded);
  }

  // The ids of single bytes, one for each byte of `text`.
  std::vector<int32_t> BytesOf(std::string_view text) const {
    std::vector<int32_t> ids;
    for (const char byte : text) {
      for (int32_t id = 0; id < tokenizer_->vocab_size(); ++id) {
        if (tokenizer_->TokenBytes(id) == std::string_view(&byte, 1)) ids.push_back(id);
      }
    }
    EXPECT_EQ(ids.size(), text.size());
    return ids;
  }

  std::unique_ptr<Tokenizer> tokenizer_;
};

TEST_F(StreamingDecoderTest, NeverGivesOutPartOfACharacter) {
  StreamingDecoder decoder(tokenizer_.get(), false);
  const std::vector<int32_t> ids = BytesOf("é😀");
  const std::vector<std::string> expected = {"", "é", "", "", "", "😀"};
  for (size_t i = 0; i < ids.size(); ++i) {
    EXPECT_EQ(decoder.Push(ids[i]), expected[i]) << i;
    EXPECT_EQ(decoder.is_at_character_end(), !expected[i].empty()) << i;
  }
  EXPECT_EQ(decoder.Finish(), "");
}

TEST_F(StreamingDecoderTest, FinishReplacesAnUnfinishedCharacter) {
  StreamingDecoder decoder(tokenizer_.get(), false);
  for (const int32_t id : BytesOf("\xF0\x9F\x98")) EXPECT_EQ(decoder.Push(id), "");
  EXPECT_EQ(decoder.Finish(), "\uFFFD");
  EXPECT_EQ(decoder.Finish(), "");
}

TEST_F(StreamingDecoderTest, SpecialTokensAreSkippedOnRequestAndCutNoCharacter) {
  const int32_t special = *tokenizer_->TokenToId("<|endoftext|>");
  const std::vector<int32_t> bytes = BytesOf("é");
  StreamingDecoder skipping(tokenizer_.get(), true);
  EXPECT_EQ(skipping.Push(bytes[0]), "");
  EXPECT_EQ(skipping.Push(special), "");
  EXPECT_EQ(skipping.Push(bytes[1]), "é");
  StreamingDecoder keeping(tokenizer_.get(), false);
  EXPECT_EQ(keeping.Push(bytes[0]), "");
  EXPECT_EQ(keeping.Push(special), "\uFFFD<|endoftext|>");
}

TEST_F(StreamingDecoderTest, ACopyIsASnapshot) {
  const std::vector<int32_t> ids = BytesOf("é!");
  StreamingDecoder decoder(tokenizer_.get(), false);
  decoder.Push(ids[0]);
  const StreamingDecoder snapshot = decoder;
  EXPECT_EQ(decoder.Push(ids[2]), "\uFFFD!");
  decoder = snapshot;
  EXPECT_EQ(decoder.Push(ids[1]), "é");
}

TEST_F(StreamingDecoderTest, PushesAddUpToDecode) {
  std::mt19937 random(11);
  for (int round = 0; round < 500; ++round) {
    const bool skip_special_tokens = round % 2 == 0;
    StreamingDecoder decoder(tokenizer_.get(), skip_special_tokens);
    std::vector<int32_t> ids;
    std::string text;
    for (int i = 0; i < 60; ++i) {
      // Half of them among the first entries, most of which are single bytes.
      const uint32_t limit = random() % 2 == 0 ? 257 : tokenizer_->vocab_size();
      ids.push_back(static_cast<int32_t>(random() % limit));
      text += decoder.Push(ids.back());
      EXPECT_EQ(FirstInvalidUtf8(text), std::string_view::npos);
    }
    text += decoder.Finish();
    EXPECT_EQ(text, *tokenizer_->Decode(ids, skip_special_tokens));
  }
}

}  // namespace
}  // namespace selfsame
