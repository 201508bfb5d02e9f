#include "common/canonical/authority.h"

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/canonical/fingerprint.h"
#include "common/canonical/rungs.h"
#include "common/canonical/self_test.h"
#include "common/check.h"
#include "common/errors.h"
#include "common/log.h"

namespace selfsame {

absl::StatusOr<Authority> ProveAuthority(const ModelSource& source, Model& model,
                                         int32_t min_rows) {
  SELFSAME_CHECK(model.limits().max_logit_rows >= model.limits().max_rows);
  const auto begin = std::chrono::steady_clock::now();
  const std::vector<int32_t> rungs = DefaultRungs(model.limits().max_rows);
  ASSIGN_OR_RETURN(SelfTestReport report, RunSelfTest(model, rungs));
  for (const std::string& failure : report.failures) LogWarning("self-test: ", failure);
  if (report.rungs.empty() || report.rungs.back() < min_rows) {
    return FailedPreconditionError(
        absl::StrCat("self-test: no row count of at least ", min_rows,
                     " gives the same bits whatever the batch: ", report.failures.back()));
  }
  const auto elapsed = std::chrono::steady_clock::now() - begin;
  LogInfo("self-test passed at ", report.rungs.size(), " of ", rungs.size(), " row counts in ",
          std::chrono::duration_cast<std::chrono::milliseconds>(elapsed).count(), " ms");
  ASSIGN_OR_RETURN(
      std::string fingerprint,
      ComputeFingerprint(source, model, model.ops().ArithmeticId(), report.golden_digest));
  LogInfo("fingerprint ", fingerprint);
  return Authority{.fingerprint = std::move(fingerprint), .rungs = std::move(report.rungs)};
}

}  // namespace selfsame
