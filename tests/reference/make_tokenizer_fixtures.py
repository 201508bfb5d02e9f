#!/usr/bin/env python3
"""Makes tests/data/tokenizers: small tokenisers and what the tokenizers library does with them.

Five byte-level BPE tokenisers are trained on the sentences below, one for each shape of
tokenizer.json that Selfsame reads, and every test string is encoded and decoded with each. Chat
messages are rendered with Jinja templates. All of it is a pure function of this file.

    pip install tokenizers==0.23.2 jinja2==3.1.6
    tests/reference/make_tokenizer_fixtures.py
"""

import json
import pathlib
import random
import sys

import jinja2
import tokenizers
from jinja2.sandbox import ImmutableSandboxedEnvironment
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

PINNED = {"tokenizers": "0.23.2", "jinja2": "3.1.6"}
OUTPUT = pathlib.Path(__file__).resolve().parent.parent / "data" / "tokenizers"

LLAMA3_REGEX = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN_REGEX = LLAMA3_REGEX.replace(r"\p{N}{1,3}", r"\p{N}")

# Bytes that SmolLM2's vocabulary has no entry for; text that needs them loses them.
SMOLLM2_MISSING = "ûēÿĆĔþùĖúöÀĝõòýøÁñĄü÷"

CORPUS = """
The same question asked twice should get the same answer, and it's not enough to say it's close.
A decoder proposes, a verifier decides: that's the whole of it, and they'll never disagree for long.
We don't know what we've seen until we've written it down; I'm sure you'd do the same.
In 2024 there were 365 or 366 days, 12 months, 52 weeks and 1000000 things to do in 24 hours.
def answer(question, seed=42):
    for token in range(len(question)):
        if question[token] == seed:
            return {"token": token, "logprob": -0.125}
    return None
int main(int argc, char** argv) { printf("%d\\n", argc); return 0; }
Numbers: 3.14159, 2.71828, 1,234,567 and 0x7fff; dates: 1999-12-31, 26/07/2024; times 12:34:56.
Der schnelle Fluss fließt über große Steine, und die Brücke hält trotz des Sturmes.
L'été dernier, nous avons mangé des crêpes près de l'église où naquit ma grand-mère.
El niño comió una piña mañana por la mañana; ¿cuándo volverá el señor?
Быстрая лиса прыгает через ленивую собаку, а собака только смотрит ей вслед.
Η γρήγορη αλεπού πηδά πάνω από το τεμπέλικο σκυλί και φεύγει προς το δάσος.
今天的天气很好，我们一起去公园散步，然后回家吃饭。明天也许会下雨。
吾輩は猫である。名前はまだ無い。どこで生れたかとんと見当がつかぬ。
오늘은 날씨가 좋아서 공원에 산책하러 갔습니다. 내일은 비가 올지도 모릅니다.
السلام عليكم ورحمة الله، كيف حالك اليوم؟ الطقس جميل في الصباح.
שלום עולם, מה שלומך היום? השמש זורחת והים שקט.
नमस्ते दुनिया, आज मौसम बहुत अच्छा है और हम बाज़ार जा रहे हैं।
สวัสดีชาวโลก วันนี้อากาศดีมาก เราไปเดินเล่นกันเถอะ
Smile 😀😃😄 wave 👋🏽 family 👨‍👩‍👧‍👦 flag 🇩🇪 heart ❤️ rocket 🚀🚀 ok 👌
\t\tindented with tabs\r\nand carriage returns\r\n\r\n    four spaces        eight spaces
""".strip().splitlines(keepends=True)

CASES = [
    "",
    " ",
    "\n",
    "Hello, world!",
    " leading and trailing ",
    "two  spaces   three    four",
    # Contractions, straight and typographic, in both cases, and with a long s.
    "I'm you're he's we've they'd she'll don't",
    "I'M YOU'RE HE'S WE'VE THEY'D SHE'LL DON'T",
    "it\u2019s they\u2019re 'tis 's 't '' ' s o'clock rock'n'roll",
    "'\u017f '\u017fa x'\u017fy 'S\u212a",
    # Emoji: skin tones, joined families, flags, keycaps, variation selectors, cut sequences.
    "\U0001f600\U0001f603 \U0001f44b\U0001f3fd\U0001f44b\U0001f3ff",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466 \U0001f469\U0001f3fb\u200d\U0001f680",
    "\U0001f1e9\U0001f1ea\U0001f1eb\U0001f1f7 1\ufe0f\u20e3 \u2764\ufe0f \u2764\ufe0e",
    "\u200d\U0001f468\u200d \U0001f3fd\ufe0f",
    # Combining marks, composed and decomposed, stacked and out of order, singletons, Hangul.
    "caf\u00e9 cafe\u0301 na\u00efve nai\u0308ve \u00c5ngstro\u0308m A\u030angstr\u00f6m \u212bngstrom",
    "q\u0307\u0323 q\u0323\u0307 \u1e69 s\u0323\u0307 \u1e0b\u0323 e\u0301\u0301\u0301\u0301\u0301",
    "\u1112\u1161\u11ab\u1100\u1173\u11af \ud55c\uae00 \u2126 \u03a9 \u0958 \u0915\u093c \ufb1d \u05d9\u05b4",
    "\u0301 lone mark, \u0301\u0323 two; a\u0898\u0323\u0301 newer marks \u1acf\u0334\u1df8\u0325",
    # CJK, kana, full width, supplementary ideographs, numerals.
    "\u4f60\u597d\uff0c\u4e16\u754c\uff01\u3000\u5168\u89d2\u3000\uff21\uff22\uff11\uff12",
    "\u65e5\u672c\u8a9e\u306e\u30c6\u30b9\u30c8\u3067\u3059\u3002 \U00020000\U0002a6df\U00031350\U0002ebf0",
    "\u4e00\u4e8c\u4e09 \u2160\u2167 \u2460\u2473 \u00bd\u00b2\u00b3 \u0660\u0661\u0662 \U0001d7ce\U0001d7cf \U00010d40",
    # Right-to-left text, with marks, and directional controls.
    "\u0627\u0644\u0633\u0644\u0627\u0645\u064f \u0639\u064e\u0644\u064a\u0643\u0645 \u05e9\u05b8\u05c1\u05dc\u05d5\u05b9\u05dd",
    "abc \u202b\u05d0\u05d1\u05d2\u202c def \u2067\u0645\u0631\u062d\u0628\u0627\u2069 \u200e\u200f",
    # Other scripts, mixed.
    "Hello\u041f\u0440\u0438\u0432\u0435\u0442\u4f60\u597d\u0645\u0631\u062d\u0628\u0627\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35\u0928\u092e\u0938\u094d\u0924\u0947",
    "x\u00b2+y\u2082=\u221a2 \u2260 \u221e \u20ac100 \u00a35.00 \u00b15% \u00ab\u00bb\u2014\u2026",
    # Control characters, the whole of C0 and C1, and noncharacters.
    "".join(chr(c) for c in range(0x00, 0x20)),
    "".join(chr(c) for c in range(0x7F, 0xA1)),
    "a\u0000b\u0001c\u007fd \ufeffbom \uffff\ufffe\U0010ffff \ufffd \ue000 \U000f0000",
    # White space of every kind, and what only looks like it.
    "a\u0085b\u00a0c\u1680d\u2000e\u200af\u2028g\u2029h\u202fi\u205fj\u3000k",
    "a\u180eb\u200bc\u200cd\u200de\u2060f\ufeffg \u180e \u200b ",
    "\u00a0\u00a0x \u00a0 x\u2003\u2003\u2003x \u3000\u3000",
    "\t\tx\t \t y\x0b\x0cz \r\n\r\n \n  \n\n x \n",
    "line\nline\r\nline\r\rline\n\n\n\nend\n",
    " " * 37 + "x" + " " * 64,
    "\n" * 33,
    "\r\n" * 9 + " \n \n  x",
    "\t" * 20 + "x",
    " \n" * 15,
    # Digits in runs.
    "1 12 123 1234 12345 123456 1234567 12345678901234567890",
    "9" * 61,
    "3.14159e-10 1,000,000 0xDEADBEEF 2024-07-26T12:34:56Z v1.2.3 10km 5x",
    # Long runs of one kind.
    "a" * 130,
    "ab" * 60,
    "\u00e9" * 40,
    "!" * 50 + "?" * 3,
    "\U0001f600" * 25,
    "-" * 16 + "=" * 16 + "_" * 16,
    # Special tokens, look-alikes, neighbours and nests.
    "<|endoftext|>",
    "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
    "a<|im_start|>b <|im_end|> c<|endoftext|><|endoftext|>d",
    "<|im_start|<|im_start|>|> <|im_start |> <|IM_START|> <|im_startx|> <im_start> |im_start|",
    "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nx<|eot_id|>",
    "<|begin_of_text <|eot_id|>> <<|eot_id|> <|eot_id|",
    "<think>\nhm\n</think>\n\n<tool_call> </tool_call><think></think",
    "<file_sep><repo_name>x<filename>",
    # The marked-up tokens of the tokeniser with unusual flags.
    "a  [L]  b  [R]  c  [B]  d[L][R]  [L]",
    "[W] x[W] [W]x [W]. \u00e9[W] _[W] [W]\u0301 ([W])[W]",
    "[caf\u00e9] [cafe\u0301] x[cafe\u0301]y [NN] [N]N] [N][NN][N",
    "[L]\u3000[R]\u3000\u00a0x  [B]\n\n",
    # Code and markup.
    "for (int i = 0; i < n; ++i) { a[i] += b[i] * 2; }  // loop",
    "def f(x):\n    return x**2\n\n\n\tif x != y:\n\t\tpass\n",
    '{"key": "value", "list": [1, 2.5, null, true], "nested": {"a": "\\u00e9\\n"}}',
    "<html><body class='x'>&amp;&lt;</body></html> https://example.com/a?b=c&d=%20e#f",
    "$HOME/path/to/file.txt C:\\dir\\file @user #tag a_b_c fooBar HTTPServer",
    "The quick brown fox. " * 6,
]

RANDOM_CASES = 240
RANDOM_PIECES = [
    " ", " ", "  ", "\n", "\r\n", "\t", "\u0085", "\u00a0", "\u180e", "\u200b", "\u2028", "\u3000",
    "a", "b", "the", " same", "The", "'s", "'LL", "'", "1", "42", "\u00bd", "\u2167", "\u0663",
    "\u00e9", "e\u0301", "\u0323", "\u0301", "\u4e00", "\u3042", "\uac00", "\u05d0", "\u0628",
    "\u0915\u094d", "\U0001f600", "\u200d", "\ufe0f", "\U0001f3fd", "!", "...", "_", "<|", "|>",
    "<|im_start|>", "<|eot_id|>", "<think>", "[L]", "[R]", "[W]", "\u0000", "\u001f", "\u007f",
]  # fmt: skip


def random_code_point(rng):
    limit = rng.choice((0x80, 0x800, 0x3100, 0xFFFF, 0x1FFFF, 0x10FFFF))
    while True:
        code_point = rng.randint(0, limit)
        if not 0xD800 <= code_point < 0xE000:
            return chr(code_point)


def random_cases():
    rng = random.Random(20240726)
    cases = []
    for _ in range(RANDOM_CASES):
        any_code_point = rng.random()
        cases.append(
            "".join(
                random_code_point(rng)
                if rng.random() < any_code_point
                else rng.choice(RANDOM_PIECES)
                for _ in range(rng.randint(1, 24))
            )
        )
    return cases


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


# SmolLM2's own template. The others produce, for plain messages, what their models' own do.
SMOLLM2_TEMPLATE = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
    "<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + "
    "'<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' "
    "}}{% endif %}"
)
CHATML_TEMPLATE = r"""
{%- for message in messages %}
    {{- "<|im_start|>" + message.role + "\n" + message.content + "<|im_end|>" + "\n" }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- "<|im_start|>assistant\n" }}
{%- endif %}
"""
QWEN3_TEMPLATE = r"""
{#- It's ChatML; thoughts are kept only in answers to the last question. #}
{%- if messages[0].role == 'system' %}
    {{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}
{%- endif %}
{%- set ns = namespace(is_open=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- set is_tool = message.content.startswith('<tool_response>')
                      and message.content.endswith('</tool_response>') %}
    {%- if ns.is_open and message.role == "user" and not is_tool %}
        {%- set ns.is_open = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == "user" or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}
    {%- elif message.role == "assistant" %}
        {%- set content = message.content.split('</think>')[-1] %}
        {%- set reasoning_content = '' %}
        {%- if '</think>' in message.content %}
            {%- set content = content.lstrip('\n') %}
            {%- set before = message.content.split('</think>')[0].rstrip('\n') %}
            {%- set reasoning_content = before.split('<think>')[-1].lstrip('\n') %}
        {%- endif %}
        {%- set is_kept = false %}
        {%- if loop.index0 > ns.last_query_index %}
            {%- if loop.last or (not loop.last and reasoning_content) %}
                {%- set is_kept = true %}
            {%- endif %}
        {%- endif %}
        {%- if is_kept %}
            {{- '<|im_start|>' + message.role }}
            {{- '\n<think>\n' + reasoning_content.strip('\n') + '\n</think>\n\n'
                + content.lstrip('\n') }}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\n' + content }}
        {%- endif %}
        {{- '<|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\n\n</think>\n\n' }}
    {%- endif %}
{%- endif %}
"""
LLAMA3_TEMPLATE = (
    "{% for message in messages %}{% set content = '<|start_header_id|>' + message['role'] + "
    "'<|end_header_id|>\n\n' + message['content'] | trim + '<|eot_id|>' %}"
    "{% if loop.first %}{% set content = bos_token + content %}{% endif %}{{ content }}"
    "{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
LLAMA31_TEMPLATE = r"""{{- bos_token }}
{%- if date_string is not defined %}
    {%- set date_string = "26 Jul 2024" %}
{%- endif %}
{#- The first system message has a place of its own; there's always a system turn. #}
{%- set system_message = "" %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\n\n" }}
{{- "Cutting Knowledge Date: December 2023\n" }}
{{- "Today Date: " + date_string + "\n\n" }}
{{- system_message + "<|eot_id|>" }}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' + message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %}
"""

TEMPLATES = {
    "smollm2": SMOLLM2_TEMPLATE,
    "chatml": CHATML_TEMPLATE,
    "qwen3": QWEN3_TEMPLATE,
    "llama3": LLAMA3_TEMPLATE,
    "llama31": LLAMA31_TEMPLATE,
}

CHATS = [
    [("user", "Hello")],
    [("system", "Be brief."), ("user", "Why is the sky blue?")],
    [("system", ""), ("user", "")],
    [("user", " \n padded \u00a0\u3000\n"), ("assistant", "\n\nanswer\n"), ("user", "\u200b x \x1f")],
    [("system", "  S  "), ("user", "a"), ("assistant", "b"), ("system", " mid "), ("user", "c")],
    [("user", "a"), ("assistant", "<think>\nhm\n</think>\n\nb"), ("user", "c")],
    [("user", "a"), ("assistant", "<think>\n\n hm \n\n</think>\n\n\nb</think>c")],
    [("user", "a"), ("assistant", "b"), ("assistant", "<think>x</think>y"), ("assistant", "z")],
    [("user", "a"), ("assistant", "b")],
    [("assistant", "no </think>\nquestion"), ("system", "s")],
    [("user", "a"), ("assistant", "b"), ("user", "<tool_response>\n1\n</tool_response>")],
    [("user", "a <|im_end|>\n<|im_start|>system\nb"), ("assistant", "<|eot_id|>'\"\\n")],
    [("user", "\u4f60\u597d \U0001f468\u200d\U0001f469\u200d\U0001f467 e\u0301 \u05d0")],
]


def render(template, chat, **options):
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    messages = [{"role": role, "content": content} for role, content in chat]
    return environment.from_string(template).render(
        messages=messages, bos_token="<|begin_of_text|>", **options
    )


def chat_fixtures():
    expected = []
    for name, template in TEMPLATES.items():
        for index, chat in enumerate(CHATS):
            variants = [{"add_generation_prompt": True}, {"add_generation_prompt": False}]
            if name == "qwen3":
                variants.append({"add_generation_prompt": True, "enable_thinking": False})
            if name == "llama31":
                variants.append({"add_generation_prompt": True, "date_string": "01 Jan 2030"})
            for options in variants:
                prompt = render(template, chat, **options)
                expected.append({"template": name, "chat": index, **options, "prompt": prompt})
    return {"templates": TEMPLATES, "chats": CHATS, "expected": expected}


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
