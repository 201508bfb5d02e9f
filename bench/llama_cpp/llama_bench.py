"""Times llama.cpp's forward pass the way bench/engine/engine_bench times ours.

Usage: python llama_bench.py MODEL.gguf THREADS

Decode steps at batch 1 and 8 after 128 tokens of context, 64 steps each, and a prefill of 512
tokens, 7 times; prints the median of each as a "NAME MILLISECONDS" line. Defaults of llama.cpp
throughout (float16 KV, flash attention as it chooses). Works with llama-cpp-python 0.3.36.
"""

import random
import statistics
import sys
import time

import llama_cpp

_CONTEXT = 128
_STEPS = 64
_PREFILL = 512
_PREFILL_REPETITIONS = 7


def make_context(model, threads, sequences):
    params = llama_cpp.llama_context_default_params()
    params.n_ctx = 256 * sequences if sequences > 1 else 1024
    params.n_batch = _PREFILL
    params.n_ubatch = _PREFILL
    params.n_seq_max = sequences
    params.n_threads = threads
    params.n_threads_batch = threads
    context = llama_cpp.llama_init_from_model(model, params)
    if not context:
        raise RuntimeError("llama_init_from_model failed")
    return context


def fill(batch, rows):
    """rows: (token, position, sequence, wants logits)."""
    batch.n_tokens = len(rows)
    for i, (token, position, sequence, logits) in enumerate(rows):
        batch.token[i] = token
        batch.pos[i] = position
        batch.n_seq_id[i] = 1
        batch.seq_id[i][0] = sequence
        batch.logits[i] = logits


def timed_decode(context, batch):
    start = time.perf_counter()
    if llama_cpp.llama_decode(context, batch) != 0:
        raise RuntimeError("llama_decode failed")
    llama_cpp.llama_synchronize(context)
    return (time.perf_counter() - start) * 1e3


def prompt_rows(rng, vocab, length, sequence):
    return [(rng.randrange(vocab), i, sequence, i == length - 1) for i in range(length)]


def measure_decode(model, vocab, threads, sequences, batch):
    rng = random.Random(sequences)
    context = make_context(model, threads, sequences)
    for sequence in range(sequences):
        fill(batch, prompt_rows(rng, vocab, _CONTEXT, sequence))
        timed_decode(context, batch)
    times = []
    for step in range(_STEPS):
        fill(batch, [(rng.randrange(vocab), _CONTEXT + step, s, True) for s in range(sequences)])
        times.append(timed_decode(context, batch))
    llama_cpp.llama_free(context)
    return statistics.median(times)


def measure_prefill(model, vocab, threads, batch):
    rng = random.Random(0)
    context = make_context(model, threads, 1)
    times = []
    for _ in range(1 + _PREFILL_REPETITIONS):
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(context), True)
        fill(batch, prompt_rows(rng, vocab, _PREFILL, 0))
        times.append(timed_decode(context, batch))
    llama_cpp.llama_free(context)
    return statistics.median(times[1:])


def main():
    if len(sys.argv) != 3:
        sys.exit("usage: llama_bench.py MODEL.gguf THREADS")
    threads = int(sys.argv[2])
    silent = llama_cpp.llama_log_callback(lambda level, text, data: None)
    llama_cpp.llama_log_set(silent, None)
    llama_cpp.llama_backend_init()
    model = llama_cpp.llama_model_load_from_file(
        sys.argv[1].encode(), llama_cpp.llama_model_default_params()
    )
    if not model:
        raise RuntimeError(f"{sys.argv[1]} could not be loaded")
    vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
    batch = llama_cpp.llama_batch_init(_PREFILL, 0, 1)
    print("system", llama_cpp.llama_print_system_info().decode(), file=sys.stderr)
    for sequences in (1, 8):
        print(f"decode_{sequences}_ms", measure_decode(model, vocab, threads, sequences, batch))
    print(f"prefill_{_PREFILL}_ms", measure_prefill(model, vocab, threads, batch))


if __name__ == "__main__":
    main()
