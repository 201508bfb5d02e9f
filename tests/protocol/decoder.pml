/* The decoder of one request: Speculation, Sessions and its links. Part of verification.pml. */

#define HAS_SESSION (session_id != 0)
#ifdef MUTANT_STUCK
#define WANTS_SESSION (newest_session == 0)
#else
#define WANTS_SESSION (!HAS_SESSION)
#endif
#define IN_FLIGHT len(flight)
#define HAS_EVENT(sender) (len(events[AT(me, sender)]) > 0)
#define UNSUBMITTED (length - committed - submitted)
#define WANTS_CANDIDATE                                  \
  (length < TOKENS && !has_proposed_end &&               \
   UNSUBMITTED < WINDOW * MAX(1, CREDIT - IN_FLIGHT))
#define FROM_LINK link[AT(me, from)]
#define THIS_LINK link[AT(me, verifier)]

/* VerifierClient: what is sent while the stream is down is dropped, and so is what belongs to a
 * session that was not opened on this stream. */
inline send_open() {
  if
  :: is_connected[verifier] ->
    assert(len(requests[verifier]) < REQUEST_QUEUE);
    THIS_LINK.opened = session_id;
    THIS_LINK.sent = 0;
    THIS_LINK.answered = 0;
    requests[verifier]!OPEN, me, session_id, 0, 0, committed, 0, output_to_open
  :: else
  fi
}

inline send_close() {
  if
  :: is_connected[verifier] && THIS_LINK.opened == session_id ->
    assert(len(requests[verifier]) < REQUEST_QUEUE);
    THIS_LINK.opened = 0;
    requests[verifier]!CLOSE, me, session_id, 0, 0, 0, 0, 0
  :: else
  fi
}

inline send_window() {
  if
  :: is_connected[verifier] && THIS_LINK.opened == session_id ->
    assert(len(requests[verifier]) < REQUEST_QUEUE);
    THIS_LINK.sent++;
    requests[verifier]!SUBMIT, me, session_id, epoch, next_window, committed + submitted, size,
        FIRST(output >> (2 * (committed + submitted)), size)
  :: else
  fi
}

/* Sessions::Forget and Speculation::OnSessionLost. */
inline forget_session() {
  do
  :: IN_FLIGHT > 0 -> flight?_, _, _, _
  :: else -> break
  od;
  session_id = 0;
  verifier = NOBODY;
  is_open = false;
  epoch = 0;
  next_window = 1;
  submitted = 0
}

/* Sessions::LoseSessions. The session may have been opened on a newer stream than the one that is
 * lost; there it must be closed. */
inline lose_session() {
  if
  :: HAS_SESSION && verifier == from ->
#ifndef MUTANT_LEAK
    send_close();
#endif
    forget_session()
  :: else
  fi
}

/* Sessions::Break: the verdict is not to be believed. */
inline break_link() {
  assert(FROM_LINK.is_faulty);
  lose_session();
  is_up[from] = false;
  is_connected[from] = false
}

/* Speculation::CheckVerdict, into `is_sound`. */
inline check_verdict() {
  is_sound = false;
  if
  :: e_window == 0 ->
    is_sound = !is_open && e_outcome == COMMIT && e_epoch == epoch && e_canonical != NO_TOKEN &&
               e_committed == committed + 1
  :: e_window != 0 && is_open && IN_FLIGHT > 0 ->
    flight?<w_id, w_epoch, w_first, w_size>;
    if
    :: w_id != e_window
    :: w_id == e_window && w_epoch != epoch ->
      is_sound = e_outcome == DISCARDED && e_epoch == epoch
    :: w_id == e_window && w_epoch == epoch && e_outcome == COMMIT ->
      is_sound = e_epoch == epoch && e_committed > w_first && e_committed <= w_first + w_size &&
                 (e_end || e_committed == w_first + w_size)
    :: w_id == e_window && w_epoch == epoch && e_outcome == ROLLBACK ->
      is_sound = e_epoch == epoch + 1 && e_committed > w_first &&
                 e_committed <= w_first + w_size &&
                 TOKEN(output, e_committed - 1) != e_canonical
    :: w_id == e_window && w_epoch == epoch && e_outcome == DISCARDED
    fi
  :: else
  fi
}

/* Speculation::Commit; the truncation is EngineCore::OnVerdict's. */
inline commit_tokens() {
  first_dropped = MIN(e_committed, length);
  is_mismatch = e_canonical != NO_TOKEN && e_committed <= length &&
                TOKEN(output, e_committed - 1) != e_canonical;
  if
  :: is_mismatch && e_window == 0 ->
    first_dropped = e_committed - 1;
    REACHED("rollback by the opening verdict")
  :: is_mismatch && e_window != 0 ->
    first_dropped = e_committed - 1;
    REACHED("rollback")
  :: else -> REACHED("commit")
  fi;
  submitted = MAX(0, submitted - (e_committed - committed));
  dropped = 0;
  if
  :: is_mismatch || e_end ->
    dropped = length - first_dropped;
    length = first_dropped;
    output = FIRST(output, length);
    submitted = 0
  :: else
  fi;
  if
  :: e_canonical != NO_TOKEN ->
    output = FIRST(output, e_committed - 1) | (e_canonical << (2 * (e_committed - 1))) |
             ((output >> (2 * e_committed)) << (2 * e_committed));
  :: else
  fi;
  length = MAX(length, e_committed);
  assert(e_committed > committed);
  do
  :: committed < e_committed ->
    assert(committed <= last_index && TOKEN(output, committed) == CANONICAL(committed));
    committed++
  :: else -> break
  od;
  assert(e_end == (committed == last_index + 1));
  has_proposed_end = has_proposed_end && length > committed;
#ifndef MUTANT_KV
  if
  :: dropped > 0 ->
    kv_length = MIN(kv_length, committed);
    kv = FIRST(kv, MAX(1, kv_length) - 1)
  :: else
  fi;
#endif
  assert(dropped == 0 || kv_length <= committed);
  assert(kv_length <= length && FIRST(kv ^ output, MAX(1, kv_length) - 1) == 0)
}

/* Sessions::OnVerdict and what EngineCore makes of it. */
inline on_verdict() {
  if
  :: e_window != 0 && e_session == FROM_LINK.opened && !FROM_LINK.is_faulty ->
    FROM_LINK.answered--
  :: else
  fi;
  if
  :: e_session == session_id && verifier == from ->
    check_verdict();
    if
    :: is_sound ->
      if
      :: e_window == 0 -> is_open = true; REACHED("opening verdict")
#ifdef MUTANT_CREDIT
      :: e_window != 0 && e_outcome == DISCARDED
      :: e_window != 0 && e_outcome != DISCARDED -> flight?_, _, _, _
#else
      :: e_window != 0 -> flight?_, _, _, _
#endif
      fi;
      if
      :: e_outcome == DISCARDED -> REACHED("discarded window")
      :: else ->
        epoch = e_epoch;
        commit_tokens();
        if
        :: e_end -> REACHED("end by the verifier"); goto finish
        :: !e_end && committed > text_end -> REACHED("end by a stop string"); goto finish
        :: else
        fi
      fi;
      check_agreement()
    :: else -> REACHED("verdict refused"); break_link()
    fi
  :: else
  fi
}

/* Credit is neither lost nor made; with nothing under way both sides say the same. */
inline check_agreement() {
  if
  :: is_connected[verifier] && session[AT(me, verifier)].id == session_id &&
     !THIS_LINK.is_faulty ->
    assert(IN_FLIGHT == THIS_LINK.sent + session[AT(me, verifier)].pending + THIS_LINK.answered);
    assert(len(events[AT(me, verifier)]) > 0 ||
           (epoch == session[AT(me, verifier)].epoch &&
            committed == session[AT(me, verifier)].committed))
  :: else
  fi
}

inline take_event() {
  if
  :: e_kind == VERDICT -> on_verdict()
  :: e_kind == ERROR ->
    if
    :: FROM_LINK.opened == e_session -> FROM_LINK.opened = 0
    :: else
    fi;
    if
    :: HAS_SESSION && e_session == session_id && verifier == from ->
      assert(e_canonical != NO_TOKEN);
      forget_session()
    :: else
    fi
  :: e_kind == UP ->
    lose_session();
    is_up[from] = true
  :: e_kind == DOWN ->
    lose_session();
    FROM_LINK.is_faulty = false;
    is_up[from] = false
  fi
}

/* A step of the fast path, with the prefill it needs; EngineCore::ProposeToken. */
inline decode() {
  kv = FIRST(output, length);
  kv_length = length + 1;
  if
  :: candidate = PLAIN
  :: candidate = OTHER
  :: candidate = STOP
  fi;
  output = output | (candidate << (2 * length));
  has_proposed_end = IS_END(candidate, length) || length == text_end;
  length++
}

/* Sessions::Open. */
inline open_session() {
  if
  :: committed > 0 && verifier == 0 -> REACHED("reopened with committed tokens")
  :: committed > 0 && verifier != 0 -> REACHED("failed over with committed tokens")
  :: else
  fi;
  newest_session++;
  session_id = newest_session;
  output_to_open = FIRST(output, committed);
  send_open()
}

/* Sessions::CutWindowsOf, of any size. */
inline cut_window() {
  size = 1;
  do
  :: size < MIN(WINDOW, UNSUBMITTED) -> size++
  :: break
  od;
  send_window();
  flight!next_window, epoch, committed + submitted, size;
  next_window++;
  submitted = submitted + size
}

proctype Decoder(byte me) {
  bool is_up[VERIFIERS] = true;
  /* Speculation */
  short output;
  byte committed, length, submitted;
  bool has_proposed_end;
  byte session_id, newest_session;
  byte verifier = NOBODY;
  bool is_open;
  byte epoch;
  byte next_window = 1;
  chan flight = [CREDIT] of { byte, byte, byte, byte }; /* window, epoch, first index, size */
  byte kv_length;
  short kv;

  do
  :: atomic { WANTS_SESSION && (is_up[0] || is_up[VERIFIERS - 1]) ->
      if
      :: is_up[0] -> verifier = 0
#if VERIFIERS > 1
      :: is_up[1] && (!is_up[0] || REQUESTS > 1) -> verifier = 1
#endif
      fi;
      open_session()
    }
  :: atomic { !HAS_SESSION && !is_up[0] && !is_up[VERIFIERS - 1] ->
      REACHED("no verifier left");
      goto finish
    }
  :: atomic { WANTS_CANDIDATE -> decode() }
  :: atomic { is_open && UNSUBMITTED > 0 && IN_FLIGHT < CREDIT -> cut_window() }
  :: atomic { HAS_EVENT(0) || HAS_EVENT(VERIFIERS - 1) ->
      if
      :: HAS_EVENT(0) -> from = 0
#if VERIFIERS > 1
      :: HAS_EVENT(1) -> from = 1
#endif
      fi;
      events[AT(me, from)]?e_kind, e_session, e_window, e_outcome, e_epoch, e_committed,
          e_canonical, e_end;
      take_event()
    }
  :: atomic { troubles > 0 && kv_length > 0 ->
      troubles--;
      kv_length = 0;
      kv = 0;
      REACHED("preempted")
    }
  :: atomic { troubles > 0 -> troubles--; REACHED("cancelled"); goto finish }
  od;
finish: /* OnComplete or OnError */
  atomic {
    if
    :: HAS_SESSION -> send_close()
    :: else
    fi;
    do
    :: IN_FLIGHT > 0 -> flight?_, _, _, _
    :: else -> break
    od;
    is_done[me] = true
  }
}
