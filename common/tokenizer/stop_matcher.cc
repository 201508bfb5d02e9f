#include "common/tokenizer/stop_matcher.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "common/limits.h"
#include "common/tokenizer/utf8.h"

namespace selfsame {

absl::StatusOr<StopMatcher> StopMatcher::Create(std::span<const std::string> stop_strings,
                                                std::string_view field) {
  if (stop_strings.size() > static_cast<size_t>(kMaxStopStrings)) {
    return InvalidArgumentError(field, absl::StrCat("has ", stop_strings.size(),
                                                    " strings; the limit is ", kMaxStopStrings));
  }
  auto automaton = std::make_shared<Automaton>();
  automaton->nodes.resize(1);
  for (size_t i = 0; i < stop_strings.size(); ++i) {
    const std::string& text = stop_strings[i];
    const std::string item = absl::StrCat(std::string(field), "[", i, "]");
    if (text.empty()) return InvalidArgumentError(item, "is empty");
    if (text.size() > static_cast<size_t>(kMaxStopStringBytes)) {
      return InvalidArgumentError(
          item, absl::StrCat("has ", text.size(), " bytes; the limit is ", kMaxStopStringBytes));
    }
    if (FirstInvalidUtf8(text) != std::string_view::npos) {
      return InvalidArgumentError(item, "is not valid UTF-8");
    }
    automaton->strings.push_back(text);
    automaton->Insert(static_cast<int32_t>(i));
  }
  automaton->LinkFallbacks();
  return StopMatcher(std::move(automaton));
}

int32_t StopMatcher::Automaton::Child(int32_t node, uint8_t byte) const {
  for (const auto& [edge, child] : nodes[node].children) {
    if (edge == byte) return child;
  }
  return -1;
}

int32_t StopMatcher::Automaton::Next(int32_t node, uint8_t byte) const {
  for (;; node = nodes[node].fallback) {
    const int32_t child = Child(node, byte);
    if (child >= 0) return child;
    if (node == 0) return 0;
  }
}

void StopMatcher::Automaton::Insert(int32_t index) {
  int32_t node = 0;
  for (const char c : strings[index]) {
    const uint8_t byte = static_cast<uint8_t>(c);
    int32_t child = Child(node, byte);
    if (child < 0) {
      child = static_cast<int32_t>(nodes.size());
      nodes[node].children.emplace_back(byte, child);
      const int32_t depth = nodes[node].depth + 1;
      nodes.emplace_back().depth = depth;
    }
    node = child;
  }
  if (nodes[node].match < 0) nodes[node].match = index;
}

void StopMatcher::Automaton::LinkFallbacks() {
  std::vector<int32_t> queue = {0};  // in order of depth
  for (size_t i = 0; i < queue.size(); ++i) {
    const int32_t parent = queue[i];
    for (const auto& [byte, child] : nodes[parent].children) {
      queue.push_back(child);
      Node& node = nodes[child];
      node.fallback = parent == 0 ? 0 : Next(nodes[parent].fallback, byte);
      // A shorter stop string that ends at the same byte wins when it was listed first.
      const int32_t shorter = nodes[node.fallback].match;
      if (shorter >= 0) node.match = node.match < 0 ? shorter : std::min(node.match, shorter);
    }
  }
}

StopMatcher::Result StopMatcher::Push(std::string_view text) {
  Result result;
  if (matched_.has_value()) return result;
  const std::vector<Node>& nodes = automaton_->nodes;
  for (size_t i = 0; i < text.size(); ++i) {
    node_ = automaton_->Next(node_, static_cast<uint8_t>(text[i]));
    const int32_t match = nodes[node_].match;
    if (match < 0) continue;
    matched_ = match;
    result.matched = match;
    node_ = 0;
    held_back_.append(text.substr(0, i + 1));
    result.text = std::exchange(held_back_, std::string());
    result.text.resize(result.text.size() - automaton_->strings[match].size());
    return result;
  }
  held_back_.append(text);
  result.text = std::exchange(held_back_, std::string());
  const size_t kept_size = result.text.size() - nodes[node_].depth;
  held_back_ = result.text.substr(kept_size);
  result.text.resize(kept_size);
  return result;
}

std::string StopMatcher::Flush() {
  node_ = 0;
  return std::exchange(held_back_, std::string());
}

}  // namespace selfsame
