#include "decoder/client/check_prompts.h"

#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/errors.h"
#include "common/file.h"
#include "common/limits.h"

namespace selfsame::client {

std::vector<std::string> BuiltInPrompts() {
  return {
      "Why is the sky blue?",
      "Write a short story about a lighthouse keeper who finds a letter in a bottle.",
      "Explain how a bicycle stays upright, step by step.",
      "List ten animals that live in the desert and one fact about each.",
      "What is the difference between a virus and a bacterium?",
      "Write a poem about the first snow of winter.",
      "Give me a recipe for vegetable soup with exact quantities.",
      "Summarise the plot of Romeo and Juliet in five sentences.",
      "How does a refrigerator keep food cold?",
      "Write a Python function that returns the n-th Fibonacci number and explain it.",
      "What should I pack for a week of hiking in the mountains?",
      "Describe the water cycle to a ten-year-old.",
      "Write a polite letter to a landlord asking for a broken heater to be repaired.",
      "What are the main causes of the First World War?",
      "Invent a new board game and describe its rules.",
      "Explain what a prime number is and list the first twenty.",
      "Translate into French: The train leaves at half past seven tomorrow morning.",
      "Describe a busy market in a coastal town, with its sounds and smells.",
      "What is photosynthesis and why does it matter?",
      "Write a dialogue between a robot and a gardener about patience.",
      "How do I learn to play the guitar on my own?",
      "Compare electric cars with petrol cars.",
      "Tell me about the planets of the solar system, from the Sun outwards.",
      "Write the opening paragraph of a detective novel set in Venice.",
      "What makes bread rise, and what can go wrong?",
      "Give three arguments for and three against working from home.",
      "Write a SQL query that finds the five customers who spent the most, and explain it.",
      "How are rainbows formed?",
  };
}

absl::StatusOr<std::vector<std::string>> ReadPrompts(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kMaxPromptBytes));
  std::vector<std::string> prompts;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    line = absl::StripSuffix(line, "\r");
    if (!line.empty()) prompts.emplace_back(line);
  }
  if (prompts.empty()) return FileError(path, "holds no prompt");
  return prompts;
}

}  // namespace selfsame::client
