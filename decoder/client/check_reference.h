#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "decoder/client/check_plan.h"
#include "decoder/client/inference_api.h"

namespace selfsame::client {

// Answers kept in a file, to compare a later run with: after a restart, on another replica.
struct SavedReference {
  std::string fingerprint;
  std::string model;
  std::vector<CheckCase> cases;
  std::vector<Answer> answers;  // as many as cases; what FindDifference compares is kept
  // Those of the same requests without the promise, one at a time; empty when one of them failed.
  std::vector<Answer> ordinary_answers{};
};

std::string SerializeReference(const SavedReference& reference);

// `path` is named in the FileError for text that is not such a file.
absl::StatusOr<SavedReference> ParseReference(std::string_view path, const std::string& text);

// FAILED_PRECONDITION unless the saved answers are to exactly these questions.
absl::Status CheckSameCases(const SavedReference& reference, const std::vector<CheckCase>& cases);

}  // namespace selfsame::client
