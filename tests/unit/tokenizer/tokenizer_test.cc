#include "common/tokenizer/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "common/errors.h"
#include "common/limits.h"
#include "common/sha256.h"
#include "nlohmann/json.hpp"

namespace selfsame {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Json = nlohmann::json;

constexpr char kFixtures[] = SELFSAME_SOURCE_DIR "/tests/data/tokenizers/";

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::unique_ptr<Tokenizer> LoadFixture(const std::string& name) {
  auto tokenizer = Tokenizer::Load(kFixtures + name);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return *std::move(tokenizer);
}

// A model directory of its own for each test.
class TokenizerDirTest : public testing::Test {
 protected:
  void SetUp() override {
    const auto* test = testing::UnitTest::GetInstance()->current_test_info();
    directory_ = testing::TempDir() + "/selfsame_tokenizer_" + test->name();
    std::filesystem::remove_all(directory_);
    std::filesystem::create_directories(directory_);
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  void Write(const std::string& name, std::string_view content) {
    std::ofstream(directory_ + "/" + name, std::ios::binary) << content;
  }

  std::string LoadError(const Json& json) {
    Write("tokenizer.json", json.dump());
    return LoadError();
  }
  std::string LoadError() {
    const absl::Status status = Tokenizer::Load(directory_).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    return std::string(status.message());
  }

  std::string directory_;
};

TEST(TokenizerTest, SpecialTokensInTheTextAreRecognised) {
  const auto tokenizer = LoadFixture("smollm2");
  const int32_t start = *tokenizer->TokenToId("<|im_start|>");
  const int32_t end = *tokenizer->TokenToId("<|im_end|>");
  EXPECT_THAT(*tokenizer->Encode("<|im_start|><|im_end|>", false), ElementsAre(start, end));
  EXPECT_TRUE(tokenizer->IsSpecial(start));
  EXPECT_FALSE(tokenizer->IsSpecial(*tokenizer->TokenToId("Ġthe")));
  EXPECT_EQ(tokenizer->TokenToId("<|eot_id|>"), std::nullopt);
  EXPECT_EQ(*tokenizer->Decode(std::vector<int32_t>{start}, false), "<|im_start|>");
  EXPECT_EQ(*tokenizer->Decode(std::vector<int32_t>{start}, true), "");
}

TEST(TokenizerTest, ThePostProcessorPutsItsTokensAroundOnRequest) {
  const auto llama = LoadFixture("llama3");
  const int32_t bos = *llama->TokenToId("<|begin_of_text|>");
  EXPECT_THAT(*llama->Encode("", true), ElementsAre(bos));
  EXPECT_THAT(*llama->Encode("", false), IsEmpty());
  const auto edge = LoadFixture("edge");
  EXPECT_THAT(*edge->Encode("[N]", true),
              ElementsAre(*edge->TokenToId("[N]"), *edge->TokenToId("</s>")));
}

TEST(TokenizerTest, InvalidTextNamesTheFieldAndTheByte) {
  const auto tokenizer = LoadFixture("gpt2");
  const absl::Status status = tokenizer->Encode("ab\xFFz", false, "prompt").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(FieldOf(status), "prompt");
  EXPECT_THAT(std::string(status.message()), HasSubstr("byte 2"));
  EXPECT_EQ(FieldOf(tokenizer->Encode(std::string(kMaxEncodeBytes + 1, 'a'), false).status()),
            "text");
}

TEST(TokenizerTest, DecodeRejectsIdsOutsideTheVocabulary) {
  const auto tokenizer = LoadFixture("gpt2");
  for (const int32_t id : {-1, tokenizer->vocab_size()}) {
    const std::vector<int32_t> ids = {0, id};
    const absl::Status status = tokenizer->Decode(ids, false, "prompt_token_ids").status();
    EXPECT_EQ(FieldOf(status), "prompt_token_ids");
    EXPECT_THAT(std::string(status.message()), HasSubstr("index 1"));
  }
}

TEST(TokenizerTest, TheDigestIsOfTheFile) {
  EXPECT_EQ(LoadFixture("gpt2")->digest(),
            Sha256().Update(ReadFile(std::string(kFixtures) + "gpt2/tokenizer.json")).HexDigest());
}

// Quadratic work on a megabyte would run into the test's timeout.
TEST(TokenizerTest, LongRunsTakeNearlyLinearTime) {
  const std::string many_spaces(1000, ' ');
  std::string spaced;
  for (int i = 0; i < 1000; ++i) spaced += many_spaces + "\n";
  for (const char* name : {"gpt2", "smollm2", "llama3", "qwen3"}) {
    const auto tokenizer = LoadFixture(name);
    for (const std::string& text :
         {std::string(1 << 20, ' '), std::string(1 << 20, 'a'), std::string(1 << 20, '\n'),
          std::string(1 << 20, '7'), std::string(1 << 20, '<'), spaced}) {
      const auto ids = tokenizer->Encode(text, false);
      ASSERT_TRUE(ids.ok()) << ids.status();
      EXPECT_EQ(*tokenizer->Decode(*ids, false), text);
    }
  }
}

TEST(TokenizerTest, ThreadsShareATokenizer) {
  const auto tokenizer = LoadFixture("qwen3");
  const std::string text = "It's cafe\u0301 2024, \u4f60\u597d!  <think>\n\n";
  const std::vector<int32_t> expected = *tokenizer->Encode(text, false);
  std::vector<std::thread> threads;
  std::vector<int> differences(4, 0);
  for (int& count : differences) {
    threads.emplace_back([&] {
      for (int i = 0; i < 200; ++i) {
        const auto ids = tokenizer->Encode(text, false);
        if (!ids.ok() || *ids != expected) ++count;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(differences, ElementsAre(0, 0, 0, 0));
}

TEST_F(TokenizerDirTest, TheConfigNamesTokensAndTemplate) {
  Write("tokenizer.json", ReadFile(std::string(kFixtures) + "smollm2/tokenizer.json"));
  auto bare = *Tokenizer::Load(directory_);
  EXPECT_EQ(bare->chat_template(), "");
  EXPECT_EQ(bare->bos_token_id(), std::nullopt);

  Write("tokenizer_config.json",
        R"({"bos_token": "<|im_start|>", "eos_token": {"content": "<|im_end|>", "lstrip": false},
            "chat_template": [{"name": "tool_use", "template": "T"},
                              {"name": "default", "template": "D"}]})");
  auto configured = *Tokenizer::Load(directory_);
  EXPECT_EQ(configured->bos_token_id(), configured->TokenToId("<|im_start|>"));
  EXPECT_EQ(configured->eos_token(), "<|im_end|>");
  EXPECT_EQ(configured->chat_template(), "D");

  Write("chat_template.jinja", "J");
  EXPECT_EQ((*Tokenizer::Load(directory_))->chat_template(), "J");

  Write("tokenizer_config.json", R"({"bos_token": 7})");
  EXPECT_THAT(LoadError(), AllOf(HasSubstr("tokenizer_config.json"), HasSubstr("bos_token")));
}

TEST_F(TokenizerDirTest, AMissingOrBrokenFileIsNamed) {
  EXPECT_THAT(LoadError(), HasSubstr(directory_ + "/tokenizer.json"));
  const std::string whole = ReadFile(std::string(kFixtures) + "gpt2/tokenizer.json");
  Write("tokenizer.json", whole.substr(0, whole.size() / 2));
  EXPECT_THAT(LoadError(), HasSubstr("malformed or truncated"));
  Write("tokenizer.json", "[]");
  EXPECT_THAT(LoadError(), HasSubstr("must be an object"));
  Write("tokenizer.json", "{}");
  EXPECT_THAT(LoadError(), HasSubstr("model.vocab"));
}

TEST_F(TokenizerDirTest, WhatIsNotSupportedIsNamed) {
  const Json good = Json::parse(ReadFile(std::string(kFixtures) + "gpt2/tokenizer.json"));
  const Json metaspace = {{"type", "Metaspace"}};
  const Json byte_level = {{"type", "ByteLevel"}, {"add_prefix_space", false}};
  const Json removed = {{"type", "Split"}, {"pattern", {{"Regex", " "}}}, {"behavior", "Removed"}};
  const Json word_class = {
      {"type", "Split"}, {"pattern", {{"Regex", "\\w+"}}}, {"behavior", "Isolated"}};
  const auto sequence = [&](const char* key, const Json& first, const Json& second) {
    return Json{{"type", "Sequence"}, {key, {first, second}}};
  };
  const struct {
    const char* pointer;
    Json value;
    const char* message;
  } cases[] = {
      {"/model/type", "Unigram", "model.type: Unigram is not supported"},
      {"/model/dropout", 0.1, "model.dropout"},
      {"/model/byte_fallback", true, "model.byte_fallback"},
      {"/model/end_of_word_suffix", "</w>", "model.end_of_word_suffix"},
      {"/model/unk_token", "<none>", "unk_token"},
      {"/model/vocab/a", "x", "model.vocab[\"a\"]"},
      {"/model/vocab/a", -5, "model.vocab[\"a\"]"},
      {"/model/vocab/a", 1 << 30, "model.vocab[\"a\"]"},
      {"/model/merges/2", "a b c", "model.merges[2]"},
      {"/model/merges/2", Json::array({"a"}), "model.merges[2]"},
      {"/model/merges/2", Json::array({"a", "\u4e00"}), "merges[2]: \"\u4e00\" is not"},
      {"/added_tokens/0/id", 5000, "added_tokens[0].id"},
      {"/added_tokens/0/content", "", "added_tokens[0].content"},
      {"/added_tokens/0/lstrip", 1, "added_tokens[0].lstrip"},
      {"/normalizer", Json{{"type", "NFKC"}}, "normalizer.type: NFKC"},
      {"/normalizer", sequence("normalizers", {{"type", "NFC"}}, {{"type", "Lowercase"}}),
       "normalizer.normalizers[1].type: Lowercase"},
      {"/pre_tokenizer", nullptr, "pre_tokenizer"},
      {"/pre_tokenizer", metaspace, "pre_tokenizer.type"},
      {"/pre_tokenizer", sequence("pretokenizers", metaspace, byte_level),
       "pre_tokenizer.pretokenizers[0].type: Metaspace"},
      {"/pre_tokenizer", sequence("pretokenizers", byte_level, byte_level),
       "pre_tokenizer.pretokenizers[0].type"},
      {"/pre_tokenizer", sequence("pretokenizers", removed, byte_level),
       "pre_tokenizer.pretokenizers[0].behavior: Removed"},
      {"/pre_tokenizer", sequence("pretokenizers", word_class, byte_level),
       "pre_tokenizer.pretokenizers[0].pattern.Regex"},
      {"/post_processor", Json{{"type", "BertProcessing"}}, "post_processor.type: BertProcessing"},
      {"/post_processor", Json{{"type", "TemplateProcessing"}, {"single", Json::array()}},
       "post_processor.single"},
      {"/post_processor/type", 3, "post_processor.type"},
      {"/decoder", Json{{"type", "WordPiece"}}, "decoder.type: WordPiece"},
      {"/decoder", nullptr, "decoder.type"},
  };
  for (const auto& test : cases) {
    Json json = good;
    json[Json::json_pointer(test.pointer)] = test.value;
    EXPECT_THAT(LoadError(json), HasSubstr(test.message));
  }
  Json with_unknown_id = Json::parse(ReadFile(std::string(kFixtures) + "llama3/tokenizer.json"));
  with_unknown_id
      ["/post_processor/processors/1/special_tokens/<|begin_of_text|>/ids/0"_json_pointer] = 4000;
  EXPECT_THAT(LoadError(with_unknown_id), HasSubstr("token 4000"));
}

TEST_F(TokenizerDirTest, MergesMayBeStringsOrPairs) {
  Json json = Json::parse(ReadFile(std::string(kFixtures) + "gpt2/tokenizer.json"));
  for (Json& merge : json["model"]["merges"]) {
    ASSERT_TRUE(merge.is_array());
    merge = merge[0].get<std::string>() + " " + merge[1].get<std::string>();
  }
  Write("tokenizer.json", json.dump());
  const std::string text = "The same question asked twice";
  EXPECT_EQ(*(*Tokenizer::Load(directory_))->Encode(text, false),
            *LoadFixture("gpt2")->Encode(text, false));
}

}  // namespace
}  // namespace selfsame
