#pragma once

#include "absl/status/status.h"
#include "verifier/engine/types.h"

namespace selfsame::verifier {

// Whether a session can be opened: INVALID_ARGUMENT naming the field, or FAILED_PRECONDITION when
// the decoder expects another fingerprint.
absl::Status ValidateOpening(const SessionOpening& opening, const VerifierInfo& info);

// What can be said of a window without its session: size and token ids. INVALID_ARGUMENT.
absl::Status ValidateWindow(const Window& window, const VerifierInfo& info);

}  // namespace selfsame::verifier
