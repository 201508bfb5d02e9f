#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "common/model/model.h"
#include "common/mutex.h"
#include "decoder/engine/types.h"

namespace selfsame::decoder {

// A verifier behind a link, without a stream between: keeps what the engine sends until ProcessOne
// answers it. Follows verification.proto; the switches make it break rules.
//
// The engine may send from any thread. All else is for one thread at a time: while a thread calls
// ProcessOne, which reports to the engine from there, no other may connect or disconnect, set a
// switch or read what is counted.
class CanonicalVerifier final : public VerifierLink {
 public:
  CanonicalVerifier(int index, std::string fingerprint);

  void Attach(VerifierEvents* events) { events_ = events; }
  void Connect();
  void Disconnect();
  // Answers the oldest message. False when there is none.
  bool ProcessOne();

  void OpenSession(SessionOpening opening) override;
  void SubmitWindow(Window window) override;
  void CloseSession(uint64_t session_id) override;
  void Reset(absl::Status reason) override;

  size_t session_count() const { return sessions_.size(); }

  int32_t max_window_size = 64;
  int32_t max_sessions = 0;
  bool can_roll_back = true;                // false: every candidate is committed unseen
  std::function<void(Verdict&)> tamper;     // sees each verdict before it leaves
  std::function<absl::Status(int)> refuse;  // of the n-th opening, from 1; OK: not refused
  int verdict_count = 0;
  int opening_count = 0;
  int reset_count = 0;
  std::vector<SessionOpening> openings;
  std::vector<Window> windows;

 private:
  struct Session {
    SessionOpening opening;
    std::vector<int32_t> tokens;  // prompt and committed output
    std::unique_ptr<KvCache> kv;
    int32_t kv_length = 0;
    std::vector<PromptLogprob> prompt_logprobs;
    uint32_t epoch = 0;
  };
  struct Close {
    uint64_t session_id;
  };
  struct ResetRequest {};
  using Message = std::variant<SessionOpening, Window, Close, ResetRequest>;

  void Push(Message message);
  void Process(SessionOpening& opening);
  void Process(Window& window);
  void Process(const Close& close) { sessions_.erase(close.session_id); }
  void Process(const ResetRequest& reset);
  SampledToken Next(Session& session);
  // Adds one token to the session and the verdict.
  void Accept(Session& session, SampledToken token, Verdict& verdict) const;
  void Send(Verdict verdict);

  int index_;
  std::string fingerprint_;
  std::unique_ptr<Model> model_;
  VerifierEvents* events_ = nullptr;
  std::map<uint64_t, Session> sessions_;

  Mutex mutex_;
  bool is_connected_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<Message> messages_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace selfsame::decoder
