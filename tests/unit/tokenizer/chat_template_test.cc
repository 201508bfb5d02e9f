#include "common/tokenizer/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "absl/strings/str_replace.h"
#include "common/errors.h"
#include "common/sha256.h"
#include "nlohmann/json.hpp"

namespace selfsame {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;

constexpr char kBos[] = "<|begin_of_text|>";

const Json& Fixtures() {
  static const Json fixtures =
      Json::parse(std::ifstream(SELFSAME_SOURCE_DIR "/tests/data/tokenizers/chats.json"));
  return fixtures;
}

std::string TemplateText(const std::string& name) {
  return Fixtures()["templates"][name].get<std::string>();
}

ChatTemplate Recognize(const std::string& name) {
  absl::StatusOr<ChatTemplate> chat = ChatTemplate::Recognize(TemplateText(name), kBos);
  EXPECT_TRUE(chat.ok()) << name << ": " << chat.status();
  return *std::move(chat);
}

TEST(ChatTemplateTest, FormsAreRecognisedByTheirText) {
  using Form = ChatTemplate::Form;
  EXPECT_EQ(Recognize("smollm2").form(), Form::kChatMl);
  EXPECT_THAT(Recognize("smollm2").default_system_message().value_or(""), HasSubstr("SmolLM"));
  EXPECT_EQ(Recognize("chatml").form(), Form::kChatMl);
  EXPECT_EQ(Recognize("chatml").default_system_message(), std::nullopt);
  EXPECT_EQ(Recognize("qwen3").form(), Form::kQwen3);
  EXPECT_EQ(Recognize("llama3").form(), Form::kLlama3);
  EXPECT_EQ(Recognize("llama31").form(), Form::kLlama31);
}

TEST(ChatTemplateTest, RendersWhatTheTemplatesRender) {
  for (const Json& expected : Fixtures()["expected"]) {
    const ChatTemplate chat = Recognize(expected["template"].get<std::string>());
    std::vector<ChatMessage> messages;
    for (const Json& message : Fixtures()["chats"][expected["chat"].get<size_t>()]) {
      messages.push_back({message[0].get<std::string>(), message[1].get<std::string>()});
    }
    ChatOptions options;
    options.add_generation_prompt = expected["add_generation_prompt"].get<bool>();
    options.enable_thinking = expected.value("enable_thinking", true);
    options.date = expected.value("date_string", std::string(kDefaultChatDate));
    const absl::StatusOr<std::string> prompt = chat.Render(messages, options);
    ASSERT_TRUE(prompt.ok()) << prompt.status();
    EXPECT_EQ(*prompt, expected["prompt"].get<std::string>()) << expected.dump();
  }
}

TEST(ChatTemplateTest, LayoutQuotesAndNotationDoNotMatter) {
  const std::string text = absl::StrReplaceAll(
      TemplateText("smollm2"),
      {{"'<|im_start|>' + message['role'] + '\n'", "\"<|im_start|>\"+message.role+\"\\n\""},
       {"{% endfor %}", "{# don't mind me #}\n{%- endfor -%}\n"}});
  ASSERT_NE(text, TemplateText("smollm2"));
  const absl::StatusOr<ChatTemplate> chat = ChatTemplate::Recognize(text, "");
  ASSERT_TRUE(chat.ok()) << chat.status();
  EXPECT_EQ(chat->default_system_message(), Recognize("smollm2").default_system_message());
  EXPECT_NE(chat->digest(), Recognize("smollm2").digest());
}

TEST(ChatTemplateTest, TheDigestIsOfTheText) {
  EXPECT_EQ(Recognize("qwen3").digest(), Sha256().Update(TemplateText("qwen3")).HexDigest());
}

TEST(ChatTemplateTest, UnknownTemplatesAreRefused) {
  const auto altered = [](const std::string& name, const char* from, const char* to) {
    const std::string text = absl::StrReplaceAll(TemplateText(name), {{from, to}});
    EXPECT_NE(text, TemplateText(name)) << from;
    return text;
  };
  for (const std::string& text : {
           std::string(),
           std::string("{{ messages }}"),
           std::string("[INST] {{ messages[0].content }} [/INST]"),
           altered("smollm2", "message['content'] +", "message['content'] | trim +"),
           altered("chatml", "\"<|im_start|>assistant\\n\"", "\"<|im_start|>assistant\\n<think>\""),
           altered("qwen3", "{{- '<think>\\n\\n</think>\\n\\n' }}\n    {%- endif %}",
                   "{{- '' }}\n    {%- else %}{{- '<think>\\n' }}{%- endif %}"),
           altered("llama3", " | trim", ""),
           altered("llama31", "December 2023", "March 2024"),
       }) {
    EXPECT_EQ(ChatTemplate::Recognize(text, kBos).status().code(),
              absl::StatusCode::kFailedPrecondition)
        << text;
  }
}

TEST(ChatTemplateTest, BadMessagesNameTheField) {
  const ChatTemplate chat = Recognize("smollm2");
  const auto field = [&](const std::vector<ChatMessage>& messages) {
    return FieldOf(chat.Render(messages, {}, "chat").status()).value_or("none");
  };
  EXPECT_EQ(field({}), "chat");
  EXPECT_EQ(field({{"user", "a"}, {"tool", "b"}}), "chat[1].role");
  EXPECT_EQ(field({{"user", "\xC3("}}), "chat[0].content");
}

}  // namespace
}  // namespace selfsame
