#!/usr/bin/env python3
"""Makes tests/data/tokenizers: small tokenisers and what the tokenizers library does with them.

Five byte-level BPE tokenisers are trained on the sentences of tokenizer_texts.py, one for each
shape of tokenizer.json that Selfsame reads, and every case there is encoded and decoded with each.
chat_fixtures.py renders chat messages with Jinja templates. All of it is a pure function of these
three files.

    pip install tokenizers==0.23.2 jinja2==3.1.6
    tests/reference/make_tokenizer_fixtures.py
"""

import json
import pathlib
import sys

import jinja2
import tokenizers
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from chat_fixtures import chat_fixtures
from tokenizer_texts import CASES, CORPUS, random_cases

PINNED = {"tokenizers": "0.23.2", "jinja2": "3.1.6"}
OUTPUT = pathlib.Path(__file__).resolve().parent.parent / "data" / "tokenizers"

LLAMA3_REGEX = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN_REGEX = LLAMA3_REGEX.replace(r"\p{N}{1,3}", r"\p{N}")

# Bytes that SmolLM2's vocabulary has no entry for; text that needs them loses them.
SMOLLM2_MISSING = "ûēÿĆĔþùĖúöÀĝõòýøÁñĄü÷"


def byte_level(**options):
    return pre_tokenizers.ByteLevel(**({"add_prefix_space": False, "use_regex": True} | options))


def split_then_byte_level(pattern):
    return pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(pattern), "isolated"), byte_level(use_regex=False)]
    )


def train(pre_tokenizer, vocab_size, normalizer=None, special_tokens=(), without=""):
    tokenizer = Tokenizer(models.BPE())
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(set(pre_tokenizers.ByteLevel.alphabet()) - set(without))
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=1,
        show_progress=False,
        special_tokens=list(special_tokens),
        initial_alphabet=alphabet,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def special(*contents):
    return [AddedToken(content, normalized=False, special=True) for content in contents]


def make_gpt2():
    tokenizer = train(byte_level(), 900)
    tokenizer.add_special_tokens(special("<|endoftext|>"))
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return json.loads(tokenizer.to_str())


def make_smollm2():
    tokenizer = train(
        pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level()]),
        800,
        special_tokens=special(
            "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<repo_name>", "<file_sep>", "<filename>"
        ),
        without=SMOLLM2_MISSING,
    )
    return json.loads(tokenizer.to_str())


def make_llama3():
    tokenizer = train(split_then_byte_level(LLAMA3_REGEX), 1000)
    tokenizer.add_special_tokens(
        special(
            "<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>",
            "<|eot_id|>",
        )  # fmt: skip
    )
    bos = "<|begin_of_text|>"
    tokenizer.post_processor = processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(
                single=f"{bos} $A",
                pair=f"{bos} $A {bos}:1 $B:1",
                special_tokens=[(bos, tokenizer.token_to_id(bos))],
            ),
        ]
    )
    description = json.loads(tokenizer.to_str())
    # Whole words whose last merge is gone can be had only by looking the word up.
    model = description["model"]
    used = {part for merge in model["merges"] for part in merge}
    model["merges"] = [
        merge
        for rank, merge in enumerate(model["merges"])
        if "".join(merge) in used or rank % 3 != 0
    ]
    model["ignore_merges"] = True
    return description


def make_qwen3():
    tokenizer = train(split_then_byte_level(QWEN_REGEX), 950, normalizer=normalizers.NFC())
    tokenizer.add_special_tokens(special("<|endoftext|>", "<|im_start|>", "<|im_end|>"))
    tokenizer.add_tokens(
        [
            AddedToken(content, normalized=False, special=False)
            for content in ("<tool_call>", "</tool_call>", "<think>", "</think>")
        ]
    )
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return json.loads(tokenizer.to_str())


def make_edge():
    """What the others leave out: token flags, unknown bytes, prefix space, merges as strings."""
    tokenizer = train(
        pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=False), byte_level(add_prefix_space=True)]
        ),
        700,
        normalizer=normalizers.Sequence([normalizers.NFC()]),
        special_tokens=special("<unk>"),
        without="".join(sorted(pre_tokenizers.ByteLevel.alphabet())[:90:3]) + "Zðĥ",
    )
    tokenizer.add_special_tokens(special("</s>"))
    tokenizer.add_tokens(
        [
            AddedToken("[L]", lstrip=True, normalized=False),
            AddedToken("[R]", rstrip=True, normalized=False),
            AddedToken("[B]", lstrip=True, rstrip=True, normalized=True),
            AddedToken("[W]", single_word=True, normalized=True),
            AddedToken("[N]", normalized=False),
            AddedToken("[NN]", normalized=False),
            AddedToken("[caf\u00e9]", normalized=True),
            AddedToken("[cafe\u0301]", normalized=False),
        ]
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", tokenizer.token_to_id("</s>"))]
    )
    description = json.loads(tokenizer.to_str())
    model = description["model"]
    model["unk_token"] = "<unk>"
    model["fuse_unk"] = True
    model["merges"] = [" ".join(merge) for merge in model["merges"]]
    return description


def write(path, value, ensure_ascii):
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(value, ensure_ascii=ensure_ascii, separators=(",", ":"))
    path.write_text(text + "\n", encoding="utf-8")
    print(f"{path.relative_to(OUTPUT)}: {path.stat().st_size} bytes")


def encoding_fixtures(descriptions):
    strings = CASES + random_cases()
    expected = {}
    for name, description in descriptions.items():
        tokenizer = Tokenizer.from_str(json.dumps(description))
        entries = []
        for string in strings:
            ids = tokenizer.encode(string, add_special_tokens=False).ids
            entry = {"ids": ids}
            text = tokenizer.decode(ids, skip_special_tokens=False)
            if text != string:
                entry["text"] = text
            visible = tokenizer.decode(ids, skip_special_tokens=True)
            if visible != text:
                entry["visible_text"] = visible
            entries.append(entry)
        empty = tokenizer.encode("", add_special_tokens=True).ids
        word = tokenizer.encode("the", add_special_tokens=True).ids
        expected[name] = {"entries": entries, "with_special": {"": empty, "the": word}}
    return {"strings": strings, "expected": expected}


def main():
    if (tokenizers.__version__, jinja2.__version__) != tuple(PINNED.values()):
        sys.exit(f"this needs exactly {PINNED}")
    descriptions = {
        "gpt2": make_gpt2(),
        "smollm2": make_smollm2(),
        "llama3": make_llama3(),
        "qwen3": make_qwen3(),
        "edge": make_edge(),
    }
    for name, description in descriptions.items():
        write(OUTPUT / name / "tokenizer.json", description, ensure_ascii=False)
    write(OUTPUT / "encodings.json", encoding_fixtures(descriptions), ensure_ascii=True)
    write(OUTPUT / "chats.json", chat_fixtures(), ensure_ascii=True)


if __name__ == "__main__":
    main()
