"""Rebuilds Hugging Face tokeniser files from the metadata of a GGUF file.

A GGUF file carries the tokens, their types, the merges and the chat template of a byte-level BPE
tokeniser, and names its pre-tokeniser. That is all of `tokenizer.json` and the part of
`tokenizer_config.json` that serving needs. Works on a `gguf.GGUFReader` (gguf 0.19.0).
"""

_TOKEN_NORMAL = 1
_TOKEN_CONTROL = 3
_TOKEN_USER_DEFINED = 4

_BYTE_LEVEL = {
    "type": "ByteLevel",
    "add_prefix_space": False,
    "trim_offsets": True,
    "use_regex": True,
}

# The value of tokenizer.ggml.pre -> the pre-tokeniser it stands for.
_PRE_TOKENIZERS = {
    "gpt-2": _BYTE_LEVEL,
    "smollm": {
        "type": "Sequence",
        "pretokenizers": [{"type": "Digits", "individual_digits": True}, _BYTE_LEVEL],
    },
}


def _field(reader, name, default=None):
    field = reader.get_field(name)
    if field is None:
        if default is None:
            raise ValueError(f"the GGUF file has no {name}")
        return default
    return field.contents()


def tokenizer_json_from_gguf(reader) -> dict:
    """The content of tokenizer.json. Raises ValueError on a tokeniser of another kind."""
    model = _field(reader, "tokenizer.ggml.model")
    if model != "gpt2":
        raise ValueError(f"tokenizer.ggml.model is {model!r}; only 'gpt2' (byte-level BPE) is known")
    pre = _field(reader, "tokenizer.ggml.pre")
    if pre not in _PRE_TOKENIZERS:
        raise ValueError(
            f"tokenizer.ggml.pre is {pre!r}; known are {', '.join(sorted(_PRE_TOKENIZERS))}"
        )
    tokens = _field(reader, "tokenizer.ggml.tokens")
    types = _field(reader, "tokenizer.ggml.token_type")
    merges = _field(reader, "tokenizer.ggml.merges")
    if len(tokens) != len(types):
        raise ValueError(f"{len(tokens)} tokens but {len(types)} token types")
    if len(set(tokens)) != len(tokens):
        raise ValueError("the GGUF file lists a token twice")

    added_tokens = []
    for token_id, (token, token_type) in enumerate(zip(tokens, types)):
        if token_type == _TOKEN_NORMAL:
            continue
        if token_type not in (_TOKEN_CONTROL, _TOKEN_USER_DEFINED):
            raise ValueError(f"token {token_id} has type {token_type}")
        added_tokens.append(
            {
                "id": token_id,
                "content": token,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": token_type == _TOKEN_CONTROL,
            }
        )
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added_tokens,
        "normalizer": None,
        "pre_tokenizer": _PRE_TOKENIZERS[pre],
        "post_processor": None,
        "decoder": _BYTE_LEVEL | {"add_prefix_space": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": {token: token_id for token_id, token in enumerate(tokens)},
            "merges": list(merges),
        },
    }


def tokenizer_config_from_gguf(reader) -> dict:
    """The content of tokenizer_config.json: the named special tokens and the chat template."""
    tokens = _field(reader, "tokenizer.ggml.tokens")
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_prefix_space": False,
        "add_bos_token": bool(_field(reader, "tokenizer.ggml.add_bos_token", False)),
        "clean_up_tokenization_spaces": False,
    }
    for name, key in (
        ("bos_token", "tokenizer.ggml.bos_token_id"),
        ("eos_token", "tokenizer.ggml.eos_token_id"),
        ("unk_token", "tokenizer.ggml.unknown_token_id"),
        ("pad_token", "tokenizer.ggml.padding_token_id"),
    ):
        if reader.get_field(key) is not None:
            config[name] = tokens[int(_field(reader, key))]
    if reader.get_field("tokenizer.chat_template") is not None:
        config["chat_template"] = _field(reader, "tokenizer.chat_template")
    return config
