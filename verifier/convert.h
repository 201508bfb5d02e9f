#pragma once

// Between the messages of verification.proto and the engine's plain types.

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "selfsame/v1/verification.pb.h"
#include "verifier/engine/engine.h"
#include "verifier/engine/types.h"

namespace selfsame::verifier {

// INVALID_ARGUMENT for a request that says nothing, which no session can be blamed for. Values are
// the engine's to judge.
absl::StatusOr<StreamMessage> FromProto(const v1::VerifyRequest& request);

v1::VerifyResponse ToProto(const Verdict& verdict);
v1::VerifyResponse ToProto(uint64_t session_id, const absl::Status& status);
v1::GetVerifierInfoResponse ToProto(const VerifierInfo& info);

}  // namespace selfsame::verifier
