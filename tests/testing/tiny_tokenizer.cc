#include "tests/testing/tiny_tokenizer.h"

#include <fstream>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/check.h"

namespace selfsame::testing {
namespace {

// The printable character that stands for a byte in byte-level BPE files, as UTF-8.
std::string ByteCharacter(int byte) {
  const auto is_printable = [](int b) {
    return (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
  };
  int code = byte;
  if (!is_printable(byte)) {
    code = 0x100;
    for (int b = 0; b < byte; ++b) code += is_printable(b) ? 0 : 1;
  }
  if (code < 0x80) return std::string(1, static_cast<char>(code));
  return {static_cast<char>(0xc0 | (code >> 6)), static_cast<char>(0x80 | (code & 0x3f))};
}

std::string Quoted(const std::string& text) {
  const bool needs_escape = text == "\"" || text == "\\";
  return absl::StrCat("\"", needs_escape ? "\\" : "", text, "\"");
}

}  // namespace

void WriteTinyTokenizer(const std::string& dir, int vocab_size) {
  SELFSAME_CHECK(vocab_size >= 259 && vocab_size <= 900);
  const std::string specials[] = {"<unk>", "<s>", "</s>"};
  std::vector<std::string> vocab;
  std::vector<std::string> added;
  int id = 0;
  for (const std::string& special : specials) {
    added.push_back(absl::StrCat("{\"id\": ", id, ", \"content\": ", Quoted(special),
                                 ", \"single_word\": false, \"lstrip\": false, \"rstrip\": false, "
                                 "\"normalized\": false, \"special\": true}"));
    vocab.push_back(absl::StrCat(Quoted(special), ": ", id++));
  }
  for (int byte = 0; byte < 256; ++byte) {
    vocab.push_back(absl::StrCat(Quoted(ByteCharacter(byte)), ": ", id++));
  }
  for (int pair = 0; id < vocab_size; ++pair) {
    const std::string text = {static_cast<char>('a' + pair / 26),
                              static_cast<char>('a' + pair % 26)};
    vocab.push_back(absl::StrCat(Quoted(text), ": ", id++));
  }
  std::ofstream file(dir + "/tokenizer.json");
  file << "{\"version\": \"1.0\", \"added_tokens\": [" << absl::StrJoin(added, ", ")
       << "], \"normalizer\": null,\n"
       << "\"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false, "
          "\"trim_offsets\": true, \"use_regex\": true},\n"
       << "\"post_processor\": null, \"decoder\": {\"type\": \"ByteLevel\", "
          "\"add_prefix_space\": true, \"trim_offsets\": true, \"use_regex\": true},\n"
       << "\"model\": {\"type\": \"BPE\", \"vocab\": {" << absl::StrJoin(vocab, ", ")
       << "}, \"merges\": []}}\n";
  SELFSAME_CHECK(file.flush().good());
}

}  // namespace selfsame::testing
