// What clients send: text to encode, ids to decode, stop strings. The tokenisers are sound ones.

#include <fuzzer/FuzzedDataProvider.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "common/check.h"
#include "common/tokenizer/stop_matcher.h"
#include "common/tokenizer/streaming_decoder.h"
#include "common/tokenizer/tokenizer.h"
#include "common/tokenizer/utf8.h"

namespace selfsame::fuzz {
namespace {

struct Model {
  const char* name;
  bool keeps_text;  // decoding an encoded text gives it back
  std::unique_ptr<Tokenizer> tokenizer = nullptr;
};

const Model& Choose(FuzzedDataProvider& input) {
  static Model* const models = [] {
    // SmolLM2 has no token for some bytes; Qwen3 composes characters, and so does "edge", which
    // adds a space besides.
    static Model list[] = {
        {"gpt2", true}, {"llama3", true}, {"smollm2", false}, {"qwen3", false}, {"edge", false}};
    for (Model& model : list) {
      auto tokenizer =
          Tokenizer::Load(std::string(SELFSAME_SOURCE_DIR "/tests/data/tokenizers/") + model.name);
      SELFSAME_CHECK(tokenizer.ok());
      model.tokenizer = *std::move(tokenizer);
    }
    return list;
  }();
  return models[input.ConsumeIntegralInRange<int>(0, 4)];
}

std::string Stream(const Tokenizer& tokenizer, const std::vector<int32_t>& ids, bool skips) {
  StreamingDecoder decoder(&tokenizer, skips);
  std::string text;
  for (const int32_t id : ids) {
    text += decoder.Push(id);
    SELFSAME_CHECK(FirstInvalidUtf8(text) == std::string::npos);
  }
  return text + decoder.Finish();
}

void CheckDecoding(const Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  for (const bool skips : {false, true}) {
    const auto text = tokenizer.Decode(ids, skips);
    SELFSAME_CHECK(text.ok());
    SELFSAME_CHECK(FirstInvalidUtf8(*text) == std::string::npos);
    SELFSAME_CHECK(Stream(tokenizer, ids, skips) == *text);
  }
}

// The matcher against its definition: the match that ends first, and of those the first listed.
void CheckStops(const std::string& text, const std::vector<std::string>& stops,
                FuzzedDataProvider& input) {
  auto matcher = StopMatcher::Create(stops);
  if (!matcher.ok()) return;
  size_t best_end = std::string::npos;
  int best = -1;
  for (size_t i = 0; i < stops.size(); ++i) {
    const size_t begin = text.find(stops[i]);
    if (begin == std::string::npos) continue;
    if (best < 0 || begin + stops[i].size() < best_end) {
      best = static_cast<int>(i);
      best_end = begin + stops[i].size();
    }
  }
  std::string out;
  for (size_t offset = 0; offset < text.size() && !matcher->matched();) {
    size_t end = offset;
    for (int left = input.ConsumeIntegralInRange<int>(1, 5); left > 0 && end < text.size();
         --left) {
      NextCodePoint(text, &end);
    }
    const StopMatcher snapshot = *matcher;
    out += matcher->Push(std::string_view(text).substr(offset, end - offset)).text;
    if (input.ConsumeBool()) {  // a rollback, and the same again
      StopMatcher again = snapshot;
      (void)again.Push(std::string_view(text).substr(offset, end - offset));
      SELFSAME_CHECK(again.matched() == matcher->matched());
    }
    offset = end;
  }
  if (best < 0) {
    SELFSAME_CHECK(!matcher->matched());
    SELFSAME_CHECK(out + matcher->Flush() == text);
  } else {
    SELFSAME_CHECK(matcher->matched() == best);
    SELFSAME_CHECK(out == text.substr(0, best_end - stops[static_cast<size_t>(best)].size()));
  }
}

void Test(FuzzedDataProvider& input) {
  const Model& model = Choose(input);
  const Tokenizer& tokenizer = *model.tokenizer;
  std::vector<std::string> stops(input.ConsumeIntegralInRange<size_t>(0, 4));
  for (std::string& stop : stops) stop = input.ConsumeRandomLengthString(12);
  std::vector<int32_t> any_ids(input.ConsumeIntegralInRange<size_t>(0, 16));
  for (int32_t& id : any_ids) id = input.ConsumeIntegralInRange<int32_t>(-1, 1024);
  const std::string text = input.ConsumeRandomLengthString(1 << 16);

  const auto is_known = [&](int32_t id) { return id >= 0 && id < tokenizer.vocab_size(); };
  if (std::all_of(any_ids.begin(), any_ids.end(), is_known)) {
    CheckDecoding(tokenizer, any_ids);
  } else {
    SELFSAME_CHECK(!tokenizer.Decode(any_ids, false).ok());
  }

  const auto ids = tokenizer.Encode(text, input.ConsumeBool());
  if (FirstInvalidUtf8(text) != std::string::npos) {
    SELFSAME_CHECK(!ids.ok());
    return;
  }
  SELFSAME_CHECK(ids.ok() && std::all_of(ids->begin(), ids->end(), is_known));
  CheckDecoding(tokenizer, *ids);
  const auto plain_ids = tokenizer.Encode(text, false);
  if (model.keeps_text) SELFSAME_CHECK(*tokenizer.Decode(*plain_ids, false) == text);
  CheckStops(text, stops, input);
}

}  // namespace
}  // namespace selfsame::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  FuzzedDataProvider input(data, size);
  selfsame::fuzz::Test(input);
  return 0;
}
