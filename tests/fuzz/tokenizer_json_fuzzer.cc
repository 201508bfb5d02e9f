// tokenizer.json, and after a zero byte tokenizer_config.json. What loads must also work.

#include <cstddef>
#include <cstdint>
#include <filesystem>

#include "common/check.h"
#include "common/tokenizer/chat_template.h"
#include "common/tokenizer/tokenizer.h"
#include "tests/fuzz/fuzz_directory.h"

namespace selfsame::fuzz {
namespace {

// Short: a file may hold a pattern that takes exponential time.
constexpr std::string_view kTexts[] = {"", "a  b\n 12'll", "\u00e9e\u0301 <s></s>", "aaaaaaaa"};

void Use(const Tokenizer& tokenizer) {
  SELFSAME_CHECK(tokenizer.vocab_size() > 0);
  for (const std::string_view text : kTexts) {
    for (const bool adds_special : {false, true}) {
      const auto ids = tokenizer.Encode(text, adds_special);
      if (!ids.ok()) continue;  // the pattern needs too many steps
      for (const int32_t id : *ids) SELFSAME_CHECK(id >= 0 && id < tokenizer.vocab_size());
      SELFSAME_CHECK(tokenizer.Decode(*ids, adds_special).ok());
    }
  }
  for (int32_t id = 0; id < std::min(tokenizer.vocab_size(), 1000); ++id) {
    SELFSAME_CHECK(tokenizer.Decode({&id, 1}, false).ok());
    (void)tokenizer.TokenBytes(id);
    (void)tokenizer.IsSpecial(id);
  }
  const auto chat = ChatTemplate::Recognize(tokenizer.chat_template(), tokenizer.bos_token());
  if (chat.ok()) {
    const ChatMessage messages[] = {{"system", "Be brief."}, {"user", "Hi"}};
    (void)chat->Render(messages);
  }
}

void Test(std::string_view input) {
  static const FuzzDirectory& dir = *new FuzzDirectory;
  const auto [tokenizer_json, config_json] = SplitAtZero(input);
  dir.Write("tokenizer.json", tokenizer_json);
  std::filesystem::remove(dir.path() + "/tokenizer_config.json");
  if (!config_json.empty()) dir.Write("tokenizer_config.json", config_json);
  const auto tokenizer = Tokenizer::Load(dir.path());
  if (tokenizer.ok()) Use(**tokenizer);
}

}  // namespace
}  // namespace selfsame::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  selfsame::fuzz::Test(selfsame::fuzz::ToText(data, size));
  return 0;
}
