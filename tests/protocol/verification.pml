/*
 * The verification protocol as a model for the checker spin: every interleaving of decoders and
 * verifiers within small bounds. run_spin.sh checks it.
 *
 * What is modelled, by the names of the code: Speculation and Sessions (decoder/engine), one
 * VerifierClient stream for each decoder-verifier pair, Session and SessionStore (verifier/engine),
 * and the messages of verification.proto between them. What is left to chance: which tokens the
 * fast path proposes, where windows are cut, when a pass runs, when messages arrive, when the
 * client cancels, and, as often as TROUBLES says, one of these: a verifier crashes (and restarts or
 * not), ends or refuses a session, sends a verdict twice or with a wrong epoch, evicts KV; a
 * decoder preempts.
 *
 * Tokens. The prompt is one token at position 0; output token i has position i + 1. The canonical
 * output is PLAIN up to `last_index`, where it may be STOP instead. A candidate is PLAIN, OTHER or
 * STOP. Lists of tokens are packed, two bits each, token 0 lowest. KV is its length in positions
 * and the output tokens it was computed from; a row whose prefix is not the canonical one gives
 * OTHER.
 *
 * Checked:
 *   - committed tokens are only added, equal the canonical ones and stop at the end of the answer;
 *   - a window's verdict is that of the oldest in flight, so each has at most one; credit is
 *     neither negative nor lost: windows in flight are those sent, pending or answered;
 *   - the epochs of both sides agree when nothing is under way;
 *   - the decoder's KV is of tokens that stand or are candidates and ends before the newest token,
 *     after a rollback before the newest committed one; the verifier's is settled;
 *   - a verifier that keeps to the protocol is never refused, nor is such a decoder;
 *   - no run is endless, and where nothing can go on every request has ended and no verifier
 *     holds a session.
 *
 * Each MUTANT_ macro puts one fault in, which the checker must find: LEAK (a lost session is not
 * closed), CREDIT (a discarded window returns none), STALE (stale windows are judged), EPOCH (a
 * rollback does not raise it), KV (a rollback does not truncate it), END (ends are not noticed),
 * STUCK (a lost session is not opened again), ENDLESS (a verifier refuses for ever).
 */

#ifndef REQUESTS
#define REQUESTS 1
#endif
#ifndef VERIFIERS
#define VERIFIERS 2
#endif
#ifndef TOKENS
#define TOKENS 4 /* max_tokens; at most 7 */
#endif
#ifndef WINDOW
#define WINDOW 2 /* candidates in a window; at most 7 */
#endif
#ifndef CREDIT
#define CREDIT 2 /* windows in flight of one request */
#endif
#ifndef TROUBLES
#define TROUBLES 1
#endif

#define PLAIN 0
#define OTHER 1
#define STOP 2
#define NO_TOKEN 3

#define NOBODY 255

/* A session that is lost leaves its messages behind. */
#define REQUEST_QUEUE (REQUESTS * (CREDIT + 2) * (TROUBLES + 1))
#define EVENT_QUEUE ((CREDIT + 3) * (TROUBLES + 1))

mtype = { OPEN, SUBMIT, CLOSE };               /* VerifyRequest */
mtype = { VERDICT, ERROR, UP, DOWN };          /* VerifierEvents */
mtype = { COMMIT, ROLLBACK, DISCARDED, NONE }; /* Outcome */

/* A verifier's Session and its sequence state. */
typedef Session {
  byte id; /* 0: no session */
  bool is_open;
  bool has_ended;
  byte epoch;
  byte committed; /* output tokens */
  short tokens;
  byte kv_length; /* positions */
  short kv;
  byte newest_window;
  byte newest_epoch;
  byte pending;
  byte window[CREDIT]; /* of the pending windows */
  byte size[CREDIT];
  short candidates[CREDIT];
}

/* One decoder-verifier stream, as far as one request sees it. */
typedef Link {
  byte opened;    /* the session opened on the present stream, while the link knows it */
  bool is_faulty; /* the verifier broke the protocol, and the decoder may not know yet */
  byte sent;      /* of that session: windows sent and not taken in */
  byte answered;  /* and verdicts of windows sent and not taken in */
}

Session session[REQUESTS * VERIFIERS];
Link link[REQUESTS * VERIFIERS];
bool is_connected[VERIFIERS] = true;
bool is_done[REQUESTS];
byte troubles;   /* left */
byte last_index; /* of the canonical answer */
bool has_stop;   /* it ends with STOP, not at max_tokens */
byte text_end;   /* index of the token that completes a stop string; TOKENS: none */

/* message, request, session, epoch, window, first index, size, tokens */
chan requests[VERIFIERS] =
    [REQUEST_QUEUE] of { mtype, byte, byte, byte, byte, byte, byte, short };
/* event, session, window, outcome, epoch, committed output tokens, canonical token, end */
chan events[REQUESTS * VERIFIERS] =
    [EVENT_QUEUE] of { mtype, byte, byte, mtype, byte, byte, byte, bool };

/* Of the step being taken, in which nobody else runs: no part of the state. */
hidden byte from;
hidden mtype e_kind, e_outcome;
hidden byte e_session, e_window, e_epoch, e_committed, e_canonical;
hidden byte e_end, is_sound, is_mismatch;
hidden byte w_id, w_epoch, w_first, w_size, first_dropped, dropped, candidate, size;
hidden short output_to_open;
hidden mtype q_kind, v_outcome;
hidden byte q_peer, q_session, q_epoch, q_window, q_first, q_size;
hidden short q_tokens;
hidden byte v_token, is_sent, is_garbled;
hidden byte peer, s, i, base, row_input, canonical, next_index;
hidden byte is_dead;

/* Tells once that a run has come here, so that the checks are known to be about something. */
#define REACHED(what) c_code { static int seen; if (!seen++) printf("reached: " what "\n"); }

#define AT(request, verifier) ((request) * VERIFIERS + (verifier))
#define TOKEN(list, index) (((list) >> (2 * (index))) & 3)
#define FIRST(list, count) ((list) & ((1 << (2 * (count))) - 1))
#define CANONICAL(index) ((has_stop && (index) == last_index) -> STOP : PLAIN)
#define IS_END(token, index) ((token) == STOP || (index) == TOKENS - 1)
#define MIN(a, b) ((a) < (b) -> (a) : (b))
#define MAX(a, b) ((a) > (b) -> (a) : (b))

#include "decoder.pml"
#include "verifier.pml"

init {
  atomic {
    do
    :: troubles < TROUBLES -> troubles++
    :: break
    od;
    last_index = TOKENS - 1;
    text_end = TOKENS;
    if /* the answer ends */
    :: true                                     /* at max_tokens */
    :: has_stop = true                          /* there, with a stop token */
    :: has_stop = true; last_index = TOKENS - 2 /* before, with a stop token */
    :: has_stop = true; last_index = 0          /* with the opening verdict */
    :: text_end = TOKENS - 2                    /* with a stop string */
    fi;
    s = 0;
    do
    :: s < VERIFIERS -> run Verifier(s); s++
    :: else -> break
    od;
    s = 0;
    do
    :: s < REQUESTS -> run Decoder(s); s++
    :: else -> break
    od
  }
  timeout;
  /* Nothing can go on. */
  atomic {
    s = 0;
    do
    :: s < REQUESTS -> assert(is_done[s]); s++
    :: else -> break
    od;
    s = 0;
    do
    :: s < REQUESTS * VERIFIERS -> assert(session[s].id == 0); s++
    :: else -> break
    od
  }
}
