// The decoder on a device that fails for good at the first pass with a row at kFatalPosition or
// beyond. Built for the tests alone.

#include <algorithm>
#include <memory>
#include <utility>

#include "common/errors.h"
#include "decoder/run.h"
#include "kernels/backend.h"
#include "tests/testing/forwarding_ops.h"

namespace {

constexpr int32_t kFatalPosition = 600;

class FailingOps final : public selfsame::testing::ForwardingOps {
 public:
  using ForwardingOps::ForwardingOps;

  void BeginPass(const selfsame::Pass& pass) override {
    is_lost_ |= std::any_of(pass.positions.begin(), pass.positions.end(),
                            [](int32_t position) { return position >= kFatalPosition; });
    ForwardingOps::BeginPass(pass);
  }
  absl::Status EndPass() override {
    RETURN_IF_ERROR(ForwardingOps::EndPass());
    return is_lost_ ? selfsame::InternalError("an unrecoverable error") : absl::OkStatus();
  }

 private:
  bool is_lost_ = false;
};

absl::StatusOr<std::unique_ptr<selfsame::Ops>> CreateFailingOps(
    const selfsame::BackendOptions& options) {
  ASSIGN_OR_RETURN(auto ops, selfsame::CreateOps(options));
  return std::make_unique<FailingOps>(std::move(ops));
}

}  // namespace

int main(int argc, char** argv) {
  return selfsame::decoder::RunDecoder(argc, argv, CreateFailingOps);
}
