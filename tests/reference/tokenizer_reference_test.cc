// Token ids and text against the tokenizers library: tests/data/tokenizers, made by
// make_tokenizer_fixtures.py.

#include <gtest/gtest.h>

#include <fstream>

#include "common/tokenizer/streaming_decoder.h"
#include "common/tokenizer/tokenizer.h"
#include "nlohmann/json.hpp"

namespace selfsame {
namespace {

using Json = nlohmann::json;

constexpr char kFixtures[] = SELFSAME_SOURCE_DIR "/tests/data/tokenizers/";

class TokenizerReferenceTest : public testing::TestWithParam<const char*> {
 protected:
  static const Json& Fixtures() {
    static const Json fixtures =
        Json::parse(std::ifstream(std::string(kFixtures) + "encodings.json"));
    return fixtures;
  }

  void SetUp() override {
    auto loaded = Tokenizer::Load(std::string(kFixtures) + GetParam());
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    tokenizer_ = *std::move(loaded);
    expected_ = &Fixtures()["expected"][GetParam()];
    ASSERT_EQ((*expected_)["entries"].size(), Fixtures()["strings"].size());
    ASSERT_GT(Fixtures()["strings"].size(), 250u);
  }

  std::unique_ptr<Tokenizer> tokenizer_;
  const Json* expected_ = nullptr;
};

TEST_P(TokenizerReferenceTest, EncodesToTheSameIds) {
  for (size_t i = 0; i < Fixtures()["strings"].size(); ++i) {
    const std::string string = Fixtures()["strings"][i].get<std::string>();
    const auto ids = tokenizer_->Encode(string, false);
    ASSERT_TRUE(ids.ok()) << ids.status();
    EXPECT_EQ(*ids, (*expected_)["entries"][i]["ids"].get<std::vector<int32_t>>())
        << "string " << i << ": " << Json(string).dump();
  }
}

TEST_P(TokenizerReferenceTest, DecodesToTheSameTextAtOnceAndStreaming) {
  for (size_t i = 0; i < Fixtures()["strings"].size(); ++i) {
    const Json& entry = (*expected_)["entries"][i];
    const auto ids = entry["ids"].get<std::vector<int32_t>>();
    const std::string text = entry.value("text", Fixtures()["strings"][i].get<std::string>());
    EXPECT_EQ(*tokenizer_->Decode(ids, false), text) << "string " << i;
    EXPECT_EQ(*tokenizer_->Decode(ids, true), entry.value("visible_text", text)) << "string " << i;
    StreamingDecoder decoder(tokenizer_.get(), false);
    std::string streamed;
    for (const int32_t id : ids) streamed += decoder.Push(id);
    EXPECT_EQ(streamed + decoder.Finish(), text) << "string " << i;
  }
}

TEST_P(TokenizerReferenceTest, AddsTheSameSpecialTokens) {
  for (const auto& [text, ids] : (*expected_)["with_special"].items()) {
    EXPECT_EQ(*tokenizer_->Encode(text, true), ids.get<std::vector<int32_t>>()) << text;
  }
}

INSTANTIATE_TEST_SUITE_P(AllShapes, TokenizerReferenceTest,
                         testing::Values("gpt2", "smollm2", "llama3", "qwen3", "edge"));

}  // namespace
}  // namespace selfsame
