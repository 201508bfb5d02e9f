"""What make_tokenizer_fixtures.py trains its tokenisers on, and what it encodes with them."""

import random

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
