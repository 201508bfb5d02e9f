#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "common/model/model.h"

namespace selfsame {

// The scope of the promise: two verifiers with the same fingerprint give the same answers. SHA-256,
// 64 hexadecimal digits, over named fields: the digests of the weights, tokenizer.json and the chat
// template, config and generation defaults, the context limit, the arithmetic and its version, the
// number of ranks, the build, and the golden pass's bits (`golden_digest`, from the self-test).
// Rungs and batch sizes are left out, since answers do not depend on them. FileError when
// tokenizer.json is missing or a file cannot be read.
absl::StatusOr<std::string> ComputeFingerprint(const ModelSource& source, const Model& model,
                                               std::string_view arithmetic_id,
                                               std::string_view golden_digest);

}  // namespace selfsame
