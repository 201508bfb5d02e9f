#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "decoder/engine/types.h"
#include "tests/sim/random.h"
#include "tests/sim/sim_decoder.h"
#include "tests/sim/sim_verifier.h"
#include "tests/sim/world.h"

namespace selfsame::sim {

struct LinkSetup {
  Micros max_delay{0};            // of one message
  Micros max_reconnect_delay{0};  // from a loss to the next attempt
};

// The way from one decoder to one verifier: what VerifierClient and gRPC are in the product. A
// stream at a time; messages of a stream arrive in order, each after a delay of its own; those of
// different streams overtake each other. A stream that breaks loses what is on its way, and the two
// ends notice at different times. Checks that each window holds what the fast path proposed, made
// from exactly the canonical prefix it stands on.
class SimLink final : public decoder::VerifierLink {
 public:
  SimLink(World& world, int index, const LinkSetup& setup, SimDecoder& decoder,
          SimVerifier& verifier, Random random);

  // Connects, now and whenever the stream has broken.
  void Start() { ScheduleConnect(); }
  // The stream breaks, if there is one.
  void Drop();
  // Nothing more arrives for `time`, in either direction; it is only late.
  void Stall(Micros time);
  // Nothing more of this stream reaches the decoder, whose end it stays up at.
  void Mute();
  // While set, one verdict in so many thousand is made invalid, or comes twice, and sessions fail
  // for no reason.
  void set_garbage_per_mille(int32_t per_mille) { garbage_per_mille_ = per_mille; }

  void OpenSession(decoder::SessionOpening opening) override;
  void SubmitWindow(decoder::Window window) override;
  void CloseSession(uint64_t session_id) override;
  void Reset(absl::Status reason) override;

  int64_t window_count() const { return window_count_; }
  int64_t rollback_count() const { return rollback_count_; }
  int64_t session_count() const { return session_count_; }
  int64_t garbage_count() const { return garbage_count_; }
  int64_t stream_count() const { return stream_count_; }
  int64_t mute_count() const { return mute_count_; }

 private:
  // What the decoder knows of one session: for the check of its windows.
  struct Session {
    SampleRow sampling;
    LogitRules logit_rules;
    std::vector<int32_t> stop_token_ids;
    size_t prompt_length = 0;
    std::vector<int32_t> tokens;  // prompt, committed, and candidates submitted
  };
  struct Stream {
    uint64_t verifier_stream_id = 0;
    bool is_broken = false;  // nothing is sent any more
    bool reaches_decoder = true;
    bool reaches_verifier = true;
    SteadyTime decoder_order;   // when the latest message to the decoder arrives
    SteadyTime verifier_order;  // and to the verifier
    std::map<uint64_t, Session> sessions;
    uint64_t first_session_id = 0;
    uint64_t newest_session_id = 0;
  };

  void ScheduleConnect();
  void Connect();
  void Break(absl::Status reason);
  Micros Delay() {
    return Micros(random_.Below(static_cast<int32_t>(setup_.max_delay.count()) + 1));
  }
  void ToVerifier(VerifierMessage message);
  void ToDecoder(const std::shared_ptr<Stream>& stream, std::function<void()> deliver);
  void OnAnswer(const std::shared_ptr<Stream>& stream, VerifierAnswer answer);
  void Deliver(const std::shared_ptr<Stream>& stream, const VerifierAnswer& answer);
  void DeliverVerdict(const std::shared_ptr<Stream>& stream, decoder::Verdict verdict);
  bool IsKnown(const Stream& stream, uint64_t session_id) const;
  void MakeInvalid(decoder::Verdict& verdict);
  static void FollowVerdict(Stream& stream, const decoder::Verdict& verdict);
  void CheckWindow(const Session& session, const decoder::Window& window);

  World& world_;
  const int index_;  // among the decoder's links
  const LinkSetup setup_;
  SimDecoder& decoder_;
  SimVerifier& verifier_;
  Random random_;
  int32_t garbage_per_mille_ = 0;
  std::shared_ptr<Stream> stream_;  // null: down
  bool owes_down_ = false;          // the decoder has not been told yet that the stream broke
  int64_t window_count_ = 0;
  int64_t rollback_count_ = 0;
  int64_t session_count_ = 0;
  int64_t garbage_count_ = 0;
  int64_t stream_count_ = 0;
  int64_t mute_count_ = 0;
};

}  // namespace selfsame::sim
