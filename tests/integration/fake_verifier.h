#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace selfsame::testing {

// What a FakeVerifier does wrong.
enum class Lie {
  kNone,  // accepts every candidate
  kRefusesStreams,
  kWrongOpeningLength,
  kOpeningWithoutToken,
  kOpeningTwice,
  kUnknownSession,
  kUnknownWindow,
  kWrongCommittedLength,
  kCommittedLengthFalls,
  kWrongEpoch,
  kRollbackWithoutToken,
  kRollbackInSameEpoch,
  kTokenOutsideVocabulary,
  kTooFewLogprobs,
  kVerdictTwice,
  kUnknownOutcome,
  kUnknownEnd,
  kEmptyMessage,
  kClosesStream,
};

const char* LieName(Lie lie);

// A verifier in this process that speaks the protocol, knows no model, and lies as told.
class FakeVerifier {
 public:
  static absl::StatusOr<std::unique_ptr<FakeVerifier>> Start(int32_t context_limit,
                                                             int32_t vocab_size);
  ~FakeVerifier();

  const std::string& address() const;
  void Tell(Lie lie);
  // What GetVerifierInfo says from now on.
  void SetContextLimit(int32_t context_limit);
  void SetVocabSize(int32_t vocab_size);
  // Verify calls so far.
  int stream_count() const;

 private:
  struct Impl;
  explicit FakeVerifier(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace selfsame::testing
