#pragma once

#include <functional>

#include "common/errors.h"
#include "tests/testing/forwarding_ops.h"

namespace selfsame::testing {

// What happens at the end of a pass, on the thread that runs it, is up to the test.
class ControlledOps final : public ForwardingOps {
 public:
  using ForwardingOps::ForwardingOps;
  absl::Status EndPass() override {
    RETURN_IF_ERROR(ForwardingOps::EndPass());
    return at_end_of_pass ? at_end_of_pass() : absl::OkStatus();
  }
  std::function<absl::Status()> at_end_of_pass;
};

}  // namespace selfsame::testing
