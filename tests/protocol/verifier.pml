/* A verifier: streams, sessions and passes. Part of verification.pml. */

/* Positions whose KV must be there before a window can run, or the opening verdict be given. */
#define NEEDED(s) (session[s].committed + (session[s].is_open -> 0 : 1))
#define HAS_WORK(request)               \
  (session[AT(request, me)].id != 0 &&  \
   (!session[AT(request, me)].is_open || session[AT(request, me)].pending > 0))

#define CAN_SUFFER(request) (session[AT(request, me)].id != 0)

inline send_event(kind, the_session, the_window, the_outcome, the_epoch, the_token, the_end) {
  if
  :: !is_done[peer] ->
    assert(len(events[s]) < EVENT_QUEUE);
    events[s]!kind, the_session, the_window, the_outcome, the_epoch, session[s].committed,
        the_token, the_end
  :: else
  fi
}

/* A verdict, or a breach of the protocol: it comes twice, or its epoch is wrong. */
inline send_verdict(of_window, outcome, token, is_end) {
  if
  :: of_window != 0 && session[s].id == link[s].opened -> link[s].answered++
  :: else
  fi;
  is_sent = true;
  is_garbled = false;
  if
  :: true
  :: troubles > 0 && !is_done[peer] ->
    troubles--;
    is_garbled = true;
    link[s].is_faulty = true;
    if
    :: true
    :: is_sent = false
    fi
  fi;
  if
  :: is_sent ->
    send_event(VERDICT, session[s].id, of_window, outcome, session[s].epoch, token, is_end)
  :: else
  fi;
  if
  :: is_garbled ->
    send_event(VERDICT, session[s].id, of_window, outcome, session[s].epoch + 2, token, is_end)
  :: else
  fi
}

inline clear_pending() {
  do
  :: session[s].pending > 0 ->
    session[s].pending--;
    session[s].window[session[s].pending] = 0;
    session[s].size[session[s].pending] = 0;
    session[s].candidates[session[s].pending] = 0
  :: else -> break
  od
}

inline free_session() {
  session[s].id = 0;
  session[s].is_open = false;
  session[s].has_ended = false;
  session[s].epoch = 0;
  session[s].committed = 0;
  session[s].tokens = 0;
  session[s].kv_length = 0;
  session[s].kv = 0;
  session[s].newest_window = 0;
  session[s].newest_epoch = 0;
  clear_pending()
}

/* SessionStore::Open. A session of the same request that is still there would never be closed. */
inline open_stored() {
  assert(session[s].id == 0);
  if
  :: session[s].id = q_session;
    session[s].committed = q_first;
    session[s].tokens = q_tokens
  :: troubles > 0 -> /* no room */
#ifndef MUTANT_ENDLESS
    troubles--;
#endif
    send_event(ERROR, q_session, 0, NONE, 0, 0, false)
  fi
}

/* Session::AddWindow. What it would refuse, no decoder sends. */
inline add_window() {
  assert(session[s].is_open);
  assert(q_window > session[s].newest_window);
  assert(q_epoch <= session[s].epoch && q_epoch >= session[s].newest_epoch);
  session[s].newest_window = q_window;
  session[s].newest_epoch = q_epoch;
  if
#ifndef MUTANT_STALE
  :: q_epoch < session[s].epoch || session[s].has_ended ->
    send_verdict(q_window, DISCARDED, NO_TOKEN, false)
#endif
  :: else ->
    next_index = session[s].committed;
    i = 0;
    do
    :: i < session[s].pending -> next_index = next_index + session[s].size[i]; i++
    :: else -> break
    od;
#ifndef MUTANT_STALE
    assert(q_first == next_index && q_first + q_size <= TOKENS);
#endif
    assert(session[s].pending < CREDIT);
    session[s].window[session[s].pending] = q_window;
    session[s].size[session[s].pending] = q_size;
    session[s].candidates[session[s].pending] = q_tokens;
    session[s].pending++
  fi
}

inline take_request() {
  peer = q_peer;
  s = AT(peer, me);
  if
  :: q_kind == SUBMIT && q_session == link[s].opened -> link[s].sent--
  :: else
  fi;
  if
  :: q_kind == OPEN -> open_stored()
  :: q_kind == CLOSE && session[s].id == q_session -> REACHED("closed"); free_session()
  :: q_kind == CLOSE && session[s].id != q_session
  :: q_kind == SUBMIT && session[s].id == q_session -> add_window()
  :: q_kind == SUBMIT && session[s].id != q_session ->
    send_event(ERROR, q_session, 0, NONE, 0, NO_TOKEN, false); /* NOT_FOUND */
    REACHED("window of a session that is gone")
  fi
}

/* The canonical arithmetic: the token for output index `index`, given KV of all before it. */
#define ROW(index)                                                         \
  ((session[s].kv_length == (index) + 1 && FIRST(session[s].kv, index) == PLAIN && \
    (index) <= last_index)                                                 \
       -> CANONICAL(index)                                                 \
       : OTHER)

inline open_verdict() {
  canonical = ROW(session[s].committed);
  session[s].tokens = session[s].tokens | (canonical << (2 * session[s].committed));
  session[s].has_ended = IS_END(canonical, session[s].committed);
  session[s].committed++;
  session[s].is_open = true;
  send_verdict(0, COMMIT, canonical, session[s].has_ended)
}

/* Session::Decide of the oldest window: its rows, DecideWindow, and what that voids. */
inline decide_window() {
  base = session[s].committed;
  assert(session[s].kv_length == base);
  is_mismatch = false;
  i = 0;
  do
  :: i < session[s].size[0] ->
    row_input = (i == 0 -> TOKEN(session[s].tokens, base - 1)
                        : TOKEN(session[s].candidates[0], MAX(1, i) - 1));
    session[s].kv = session[s].kv | (row_input << (2 * (base + i - 1)));
    session[s].kv_length++;
    if
    :: !is_mismatch && !session[s].has_ended ->
      canonical = ROW(base + i);
      session[s].tokens = session[s].tokens | (canonical << (2 * (base + i)));
      is_mismatch = canonical != TOKEN(session[s].candidates[0], i);
#ifndef MUTANT_END
      session[s].has_ended = IS_END(canonical, base + i);
#endif
      session[s].committed++
    :: else
    fi;
    i++
  :: else -> break
  od;
#ifndef MUTANT_KV
  session[s].kv_length = session[s].committed;
  session[s].kv = FIRST(session[s].kv, session[s].committed - 1);
#endif
#ifndef MUTANT_EPOCH
  session[s].epoch = session[s].epoch + is_mismatch;
#endif
  q_window = session[s].window[0];
  i = 1;
  do
  :: i < session[s].pending ->
    session[s].window[i - 1] = session[s].window[i];
    session[s].size[i - 1] = session[s].size[i];
    session[s].candidates[i - 1] = session[s].candidates[i];
    i++
  :: else -> break
  od;
  i--;
  session[s].window[i] = 0;
  session[s].size[i] = 0;
  session[s].candidates[i] = 0;
  session[s].pending--;
  v_outcome = COMMIT;
  v_token = NO_TOKEN;
  if
  :: is_mismatch -> v_outcome = ROLLBACK; v_token = canonical
  :: else
  fi;
  send_verdict(q_window, v_outcome, v_token, session[s].has_ended);
  if
  :: is_mismatch || session[s].has_ended ->
    i = 0;
    do
    :: i < session[s].pending ->
      send_verdict(session[s].window[i], DISCARDED, NO_TOKEN, false);
      i++
    :: else -> break
    od;
    clear_pending()
  :: else
  fi
}

/* Worker::RunPass for the session of `peer`: prefill of what is missing, else one window. */
inline run_pass() {
  s = AT(peer, me);
  if
  :: session[s].kv_length < NEEDED(s) ->
    if
    :: session[s].is_open -> REACHED("prefilled again")
    :: else
    fi;
    session[s].kv = session[s].tokens;
    session[s].kv_length = NEEDED(s);
    if
    :: !session[s].is_open -> open_verdict()
    :: else
    fi
  :: else -> decide_window()
  fi
}

/* Something befalls the session of `peer`. */
inline suffer() {
  s = AT(peer, me);
  if
  :: true -> /* it is ended, as when the verifier drains */
    troubles--;
    send_event(ERROR, session[s].id, 0, NONE, 0, 0, false);
    free_session()
  :: session[s].kv_length > 0 -> /* its KV is evicted */
    troubles--;
    session[s].kv_length = 0;
    session[s].kv = 0
  fi
}

/* The stream is broken: its sessions and what was sent to it are gone. */
inline end_stream() {
  do
  :: len(requests[me]) > 0 -> requests[me]?_, _, _, _, _, _, _, _
  :: else -> break
  od;
  is_dead = true;
  if
  :: is_dead = false
  :: true
  fi;
  peer = 0;
  do
  :: peer < REQUESTS ->
    s = AT(peer, me);
    free_session();
    link[s].opened = 0;
    link[s].sent = 0;
    link[s].answered = 0;
    send_event(DOWN, 0, 0, NONE, 0, 0, false);
    if
    :: !is_dead -> send_event(UP, 0, 0, NONE, 0, 0, false)
    :: else
    fi;
    peer++
  :: else -> break
  od
}

proctype Verifier(byte me) {
end:
  do
  :: atomic {
      is_connected[me] && len(requests[me]) > 0 ->
      requests[me]?q_kind, q_peer, q_session, q_epoch, q_window, q_first, q_size, q_tokens;
      take_request()
    }
  :: atomic { is_connected[me] && (HAS_WORK(0) || HAS_WORK(REQUESTS - 1)) ->
      if
      :: HAS_WORK(0) -> peer = 0
#if REQUESTS > 1
      :: HAS_WORK(1) -> peer = 1
#endif
      fi;
      run_pass()
    }
  :: atomic { is_connected[me] && troubles > 0 && (CAN_SUFFER(0) || CAN_SUFFER(REQUESTS - 1)) ->
      if
      :: CAN_SUFFER(0) -> peer = 0
#if REQUESTS > 1
      :: CAN_SUFFER(1) -> peer = 1
#endif
      fi;
      suffer()
    }
  :: atomic { is_connected[me] && troubles > 0 -> troubles--; is_connected[me] = false } /* crash */
  :: atomic {
      !is_connected[me] ->
      end_stream();
      if
      :: is_dead -> break
      :: else -> is_connected[me] = true
      fi
    }
  od
}
