#include "common/tokenizer/tokenizer_file.h"

#include <cstddef>
#include <fstream>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "common/limits.h"
#include "nlohmann/json.hpp"

namespace selfsame {
namespace {

using Json = nlohmann::json;

// A JSON value and the path that led to it, so that every complaint names its field.
class Field {
 public:
  Field(const Json* value, std::string path) : value_(value), path_(std::move(path)) {}

  bool is_null() const { return value_ == nullptr || value_->is_null(); }
  const Json& value() const { return *value_; }
  const std::string& path() const { return path_; }

  // A member; null when it is absent or this is no object.
  Field operator[](const char* key) const {
    const std::string path = path_.empty() ? key : absl::StrCat(path_, ".", key);
    if (is_null() || !value_->is_object()) return Field(nullptr, path);
    const auto found = value_->find(key);
    return Field(found == value_->end() ? nullptr : &*found, path);
  }

  absl::Status Error(std::string_view message) const {
    return InvalidArgumentError(path_, message);
  }

  absl::StatusOr<std::string> String() const {
    if (is_null() || !value_->is_string()) return Error("must be a string");
    return value_->get<std::string>();
  }

  // `fallback` where the field is absent or null; none: the field is required.
  absl::StatusOr<bool> Bool(std::optional<bool> fallback = std::nullopt) const {
    if (is_null() && fallback.has_value()) return *fallback;
    if (is_null() || !value_->is_boolean()) return Error("must be true or false");
    return value_->get<bool>();
  }

  absl::StatusOr<int32_t> Id() const {
    if (is_null() || !value_->is_number_integer()) return Error("must be an integer");
    const int64_t id = value_->get<int64_t>();
    if (id < 0 || id >= kMaxVocabSize) {
      return Error(absl::StrCat("is ", id, ", which is not in [0, ", kMaxVocabSize, ")"));
    }
    return static_cast<int32_t>(id);
  }

  absl::StatusOr<std::vector<Field>> Array() const {
    if (is_null() || !value_->is_array()) return Error("must be an array");
    std::vector<Field> items;
    items.reserve(value_->size());
    for (size_t i = 0; i < value_->size(); ++i) {
      items.emplace_back(&(*value_)[i], absl::StrCat(path_, "[", i, "]"));
    }
    return items;
  }

 private:
  const Json* value_;  // null: absent
  std::string path_;
};

absl::StatusOr<Json> ParseObject(std::string_view text) {
  Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) return InvalidArgumentError("json", "is malformed or truncated");
  if (!json.is_object()) return InvalidArgumentError("json", "must be an object");
  return json;
}

absl::Status RequireEmpty(const Field& field) {
  if (field.is_null()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::string text, field.String());
  return text.empty() ? absl::OkStatus() : field.Error("is not supported");
}

absl::Status ParseMerges(const Field& field, BpeSpec* spec) {
  ASSIGN_OR_RETURN(const std::vector<Field> items, field.Array());
  spec->merges.reserve(items.size());
  for (const Field& item : items) {
    if (item.value().is_string()) {
      const std::string text = item.value().get<std::string>();
      const size_t space = text.find(' ');
      if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos) {
        return item.Error("must be two entries with one space between");
      }
      spec->merges.emplace_back(text.substr(0, space), text.substr(space + 1));
      continue;
    }
    const Json& pair = item.value();
    if (!pair.is_array() || pair.size() != 2 || !pair[0].is_string() || !pair[1].is_string()) {
      return item.Error("must be a string or an array of two strings");
    }
    spec->merges.emplace_back(pair[0].get<std::string>(), pair[1].get<std::string>());
  }
  return absl::OkStatus();
}

absl::StatusOr<BpeSpec> ParseModel(const Field& model) {
  BpeSpec spec;
  if (!model["type"].is_null()) {
    ASSIGN_OR_RETURN(const std::string type, model["type"].String());
    if (type != "BPE") return model["type"].Error(absl::StrCat(type, " is not supported; BPE is"));
  }
  RETURN_IF_ERROR(RequireEmpty(model["continuing_subword_prefix"]));
  RETURN_IF_ERROR(RequireEmpty(model["end_of_word_suffix"]));
  const Field dropout = model["dropout"];
  if (!dropout.is_null() && dropout.value() != 0.0) return dropout.Error("is not supported");
  ASSIGN_OR_RETURN(const bool has_byte_fallback, model["byte_fallback"].Bool(false));
  if (has_byte_fallback) return model["byte_fallback"].Error("is not supported");
  ASSIGN_OR_RETURN(spec.fuse_unknown, model["fuse_unk"].Bool(false));
  ASSIGN_OR_RETURN(spec.ignore_merges, model["ignore_merges"].Bool(false));
  if (!model["unk_token"].is_null()) {
    ASSIGN_OR_RETURN(spec.unknown_token, model["unk_token"].String());
  }
  const Field vocabulary = model["vocab"];
  if (vocabulary.is_null() || !vocabulary.value().is_object()) {
    return vocabulary.Error("must be an object of ids");
  }
  spec.vocabulary.reserve(vocabulary.value().size());
  for (const auto& [spelling, id] : vocabulary.value().items()) {
    ASSIGN_OR_RETURN(const int32_t checked_id,
                     Field(&id, absl::StrCat("model.vocab[\"", spelling, "\"]")).Id());
    spec.vocabulary.emplace_back(spelling, checked_id);
  }
  RETURN_IF_ERROR(ParseMerges(model["merges"], &spec));
  return spec;
}

absl::StatusOr<std::vector<AddedToken>> ParseAddedTokens(const Field& field) {
  std::vector<AddedToken> tokens;
  if (field.is_null()) return tokens;
  ASSIGN_OR_RETURN(const std::vector<Field> items, field.Array());
  for (const Field& item : items) {
    AddedToken token;
    ASSIGN_OR_RETURN(token.id, item["id"].Id());
    ASSIGN_OR_RETURN(token.content, item["content"].String());
    ASSIGN_OR_RETURN(token.special, item["special"].Bool(false));
    ASSIGN_OR_RETURN(token.single_word, item["single_word"].Bool(false));
    ASSIGN_OR_RETURN(token.lstrip, item["lstrip"].Bool(false));
    ASSIGN_OR_RETURN(token.rstrip, item["rstrip"].Bool(false));
    ASSIGN_OR_RETURN(token.normalized, item["normalized"].Bool(!token.special));
    if (token.content.empty()) return item["content"].Error("must not be empty");
    tokens.push_back(std::move(token));
  }
  return tokens;
}

// The members of a "Sequence" under `list_key`, or the field itself when it is something else.
absl::StatusOr<std::vector<Field>> Flatten(const Field& field, const char* list_key) {
  if (field.is_null()) return std::vector<Field>();
  ASSIGN_OR_RETURN(const std::string type, field["type"].String());
  if (type != "Sequence") return std::vector<Field>{field};
  return field[list_key].Array();
}

absl::StatusOr<bool> ParseNormalizer(const Field& field) {
  ASSIGN_OR_RETURN(const std::vector<Field> parts, Flatten(field, "normalizers"));
  for (const Field& part : parts) {
    ASSIGN_OR_RETURN(const std::string type, part["type"].String());
    if (type != "NFC") {
      return part["type"].Error(absl::StrCat(type, " is not supported; NFC is"));
    }
  }
  return !parts.empty();
}

absl::Status AddRegex(const Field& field, std::string_view pattern,
                      std::vector<PreTokenizer::Step>* steps) {
  absl::StatusOr<Regex> regex = Regex::Compile(pattern);
  if (!regex.ok()) return field.Error(std::string(regex.status().message()));
  steps->push_back({PreTokenizer::Kind::kSplit, std::make_unique<const Regex>(*std::move(regex))});
  return absl::OkStatus();
}

absl::Status ParseSplit(const Field& part, std::vector<PreTokenizer::Step>* steps) {
  ASSIGN_OR_RETURN(const std::string behavior, part["behavior"].String());
  if (behavior != "Isolated") {
    return part["behavior"].Error(absl::StrCat(behavior, " is not supported; Isolated is"));
  }
  // With Isolated, matches and the text between them are both pieces, so `invert` changes nothing.
  if (part["pattern"]["Regex"].is_null()) return part["pattern"].Error("must be a Regex");
  ASSIGN_OR_RETURN(const std::string pattern, part["pattern"]["Regex"].String());
  return AddRegex(part["pattern"]["Regex"], pattern, steps);
}

absl::Status ParseByteLevel(const Field& part, std::vector<PreTokenizer::Step>* steps) {
  ASSIGN_OR_RETURN(const bool has_prefix_space, part["add_prefix_space"].Bool(true));
  ASSIGN_OR_RETURN(const bool has_regex, part["use_regex"].Bool(true));
  if (has_prefix_space) steps->push_back({PreTokenizer::Kind::kPrefixSpace, nullptr});
  return has_regex ? AddRegex(part["use_regex"], Gpt2Pattern(), steps) : absl::OkStatus();
}

absl::StatusOr<std::vector<PreTokenizer::Step>> ParsePreTokenizer(const Field& field) {
  std::vector<PreTokenizer::Step> steps;
  ASSIGN_OR_RETURN(const std::vector<Field> parts, Flatten(field, "pretokenizers"));
  for (size_t i = 0; i < parts.size(); ++i) {
    const Field& part = parts[i];
    ASSIGN_OR_RETURN(const std::string type, part["type"].String());
    const bool is_last = i + 1 == parts.size();
    if ((type == "ByteLevel") != is_last) {
      return part["type"].Error("ByteLevel must be the last pre-tokeniser, and no other");
    }
    if (type == "ByteLevel") {
      RETURN_IF_ERROR(ParseByteLevel(part, &steps));
    } else if (type == "Digits") {
      ASSIGN_OR_RETURN(const bool is_individual, part["individual_digits"].Bool(false));
      steps.push_back(
          {is_individual ? PreTokenizer::Kind::kEachDigit : PreTokenizer::Kind::kDigitRuns,
           nullptr});
    } else if (type == "Split") {
      RETURN_IF_ERROR(ParseSplit(part, &steps));
    } else {
      return part["type"].Error(
          absl::StrCat(type, " is not supported; Split, Digits and ByteLevel are"));
    }
  }
  if (parts.empty()) return field.Error("must be there: only byte-level models are supported");
  return steps;
}

absl::Status ParseTemplate(const Field& processor, TokenizerSpec* spec) {
  ASSIGN_OR_RETURN(const std::vector<Field> pieces, processor["single"].Array());
  bool after_text = false;
  for (const Field& piece : pieces) {
    if (!piece["Sequence"].is_null()) {
      ASSIGN_OR_RETURN(const std::string id, piece["Sequence"]["id"].String());
      if (id != "A" || after_text) return piece.Error("must name the one sequence A once");
      after_text = true;
      continue;
    }
    ASSIGN_OR_RETURN(const std::string name, piece["SpecialToken"]["id"].String());
    const Field ids = processor["special_tokens"][name.c_str()]["ids"];
    ASSIGN_OR_RETURN(const std::vector<Field> items, ids.Array());
    for (const Field& item : items) {
      ASSIGN_OR_RETURN(const int32_t id, item.Id());
      (after_text ? spec->suffix_ids : spec->prefix_ids).push_back(id);
    }
  }
  if (!after_text) return processor["single"].Error("has no sequence A");
  return absl::OkStatus();
}

absl::Status ParsePostProcessor(const Field& field, TokenizerSpec* spec) {
  ASSIGN_OR_RETURN(const std::vector<Field> parts, Flatten(field, "processors"));
  bool has_template = false;
  for (const Field& part : parts) {
    ASSIGN_OR_RETURN(const std::string type, part["type"].String());
    if (type == "ByteLevel") continue;  // moves offsets only
    if (type != "TemplateProcessing") {
      return part["type"].Error(
          absl::StrCat(type, " is not supported; ByteLevel and TemplateProcessing are"));
    }
    if (has_template) return part.Error("is a second TemplateProcessing");
    has_template = true;
    RETURN_IF_ERROR(ParseTemplate(part, spec));
  }
  return absl::OkStatus();
}

// A special token of tokenizer_config.json: its text, or an object that holds it.
absl::StatusOr<std::string> TokenText(const Field& field) {
  if (field.is_null()) return std::string();
  return field.value().is_object() ? field["content"].String() : field.String();
}

absl::StatusOr<std::string> ChatTemplateText(const Field& field) {
  if (field.is_null()) return std::string();
  if (!field.value().is_array()) return field.String();
  ASSIGN_OR_RETURN(const std::vector<Field> items, field.Array());
  for (const Field& item : items) {
    ASSIGN_OR_RETURN(const std::string name, item["name"].String());
    if (name == "default") return item["template"].String();
  }
  return std::string();
}

}  // namespace

absl::StatusOr<std::string> ReadTokenizerFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) return FileError(path, "cannot be opened");
  const std::streamoff size = file.tellg();
  if (size < 0) return FileError(path, "cannot be read");
  if (size > kMaxTokenizerFileBytes) {
    return FileError(path,
                     absl::StrCat("has ", size, " bytes; the limit is ", kMaxTokenizerFileBytes));
  }
  std::string content(static_cast<size_t>(size), '\0');
  file.seekg(0);
  if (!file.read(content.data(), size)) return FileError(path, "cannot be read");
  return content;
}

absl::StatusOr<TokenizerSpec> ParseTokenizerJson(std::string_view json) {
  ASSIGN_OR_RETURN(const Json parsed, ParseObject(json));
  const Field root(&parsed, "");
  TokenizerSpec spec;
  ASSIGN_OR_RETURN(spec.bpe, ParseModel(root["model"]));
  ASSIGN_OR_RETURN(spec.added_tokens, ParseAddedTokens(root["added_tokens"]));
  ASSIGN_OR_RETURN(spec.has_nfc, ParseNormalizer(root["normalizer"]));
  ASSIGN_OR_RETURN(spec.pre_tokenizer_steps, ParsePreTokenizer(root["pre_tokenizer"]));
  RETURN_IF_ERROR(ParsePostProcessor(root["post_processor"], &spec));
  ASSIGN_OR_RETURN(const std::string decoder, root["decoder"]["type"].String());
  if (decoder != "ByteLevel") {
    return root["decoder"]["type"].Error(absl::StrCat(decoder, " is not supported; ByteLevel is"));
  }
  return spec;
}

absl::StatusOr<TokenizerConfig> ParseTokenizerConfig(std::string_view json) {
  ASSIGN_OR_RETURN(const Json parsed, ParseObject(json));
  const Field root(&parsed, "");
  TokenizerConfig config;
  ASSIGN_OR_RETURN(config.bos_token, TokenText(root["bos_token"]));
  ASSIGN_OR_RETURN(config.eos_token, TokenText(root["eos_token"]));
  ASSIGN_OR_RETURN(config.chat_template, ChatTemplateText(root["chat_template"]));
  return config;
}

}  // namespace selfsame
