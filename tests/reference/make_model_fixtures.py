"""Makes the fixtures that model_reference_test.cc compares the forward pass with.

Usage: python make_model_fixtures.py --data tests/data [--smollm2 DIR]
DIR is what deploy/fetch_model.sh prints. Runs on a CPU in under a minute. Needs torch 2.11.0,
transformers 5.17.0, tokenizers 0.23.2 and safetensors 0.8.0.

Writes two random models as Hugging Face directories,
  DATA/random-llama  llama3 RoPE scaling, biases everywhere, untied embeddings, one file
  DATA/random-qwen3  q and k norms, tied embeddings, several shards and an index
and, for these, for DATA/tiny-kjv (made by train_tiny_model.py) and for SmolLM2 where it is given,
  DATA/reference/NAME.json and DATA/reference/NAME.bin

NAME.json:
  model        directory name
  made_with    library versions
  vocab_size   width of a row of logits
  top_count    K, the number of largest logits kept of a row
  bin_file     NAME.bin
  cases        list of
    name
    prompt                text, absent where the prompt is ids only
    prompt_token_ids      [P]
    greedy_token_ids      [G]: the continuation that always takes the largest logit, end-of-sequence
                          tokens not ending it
    rows                  [R] increasing positions in prompt + greedy[:-1]; row r holds the logits
                          after the tokens at positions 0 .. r, so row P - 1 + i yields greedy i
    top_offset            byte offset in NAME.bin of int32 ids [R, K], then float32 logits [R, K]:
                          each row's K largest, largest first, ties by lowest id
    full_rows             list of {row, offset}: byte offset of float32 logits [vocab_size]
    bf16_max_abs_diff     how far the same model run by transformers in bf16 is from these logits,
    bf16_rms_diff         over `rows` and the whole vocabulary: the scale of a fair tolerance
NAME.bin is little-endian without padding.

Logits are float32: weights are bf16 in the file and widened, all arithmetic is float32.
"""

import argparse
import array
import json
import pathlib
import shutil

import safetensors
import tokenizers
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

TOP_COUNT = 64
RANDOM_VOCAB_SIZE = 320

TINY_PROMPTS = {
    "prose": "And it came to pass in those days, that",
    "heading": "Psalms 23\n1 The LORD is my",
    "chat": "<|im_start|>user\nGenesis 1:3<|im_end|>\n<|im_start|>assistant\n",
    "unlike_training": "def main(argc, argv): return 42  # \u00e9\u4e2d\U0001f600",
}
# About 900 tokens: longer than one 512-key split.
TINY_LONG_PROMPT = "Numbers 7\n" + "".join(
    f"{day} His offering was one silver charger, the weight whereof was an hundred and thirty "
    f"shekels, one silver bowl of seventy shekels, both of them full of fine flour.\n"
    for day in range(1, 15)
)
SMOLLM2_PROMPTS = {
    "capital": "What is the capital of France?",
    "story": "Write the first three sentences of a story about a lighthouse keeper.",
    "code": "Write a Python function that returns the n-th Fibonacci number.",
    "translate": "Translate to French: The weather is fine today.",
}
SMOLLM2_TEMPLATE = (
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
    "<|im_end|>\n<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
)


def random_tokenizer():
    """All bytes, three special tokens and a few merges: enough to serve a random model."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=RANDOM_VOCAB_SIZE,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator([__doc__], trainer)
    assert tokenizer.get_vocab_size() == RANDOM_VOCAB_SIZE
    return tokenizer


def randomise(model, seed):
    """Weights of unit gain, so that logits spread like a trained model's and ties are near."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in sorted(model.named_parameters()):
        noise = torch.randn(parameter.shape, generator=generator)
        if name.endswith("norm.weight"):
            value = 1.0 + 0.2 * noise
        elif name.endswith(".bias"):
            value = 0.2 * noise
        else:
            value = noise * (parameter.shape[1] ** -0.5)
        parameter.data.copy_(value)


def save_random_model(model, seed, output_dir, max_shard_size):
    randomise(model, seed)
    shutil.rmtree(output_dir, ignore_errors=True)
    model.to(torch.bfloat16).save_pretrained(output_dir, max_shard_size=max_shard_size)
    for path in output_dir.glob("*.safetensors"):
        path.chmod(0o644)
    random_tokenizer().save(str(output_dir / "tokenizer.json"))
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
    }
    (output_dir / "tokenizer_config.json").write_text(
        json.dumps(tokenizer_config, indent=2) + "\n", encoding="utf-8"
    )


def save_random_llama(output_dir):
    config = transformers.LlamaConfig(
        vocab_size=RANDOM_VOCAB_SIZE,
        hidden_size=96,
        intermediate_size=160,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=512,
        rms_norm_eps=1e-5,
        # A short original context, so that all three bands of the scaling are in use.
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": 10000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
        tie_word_embeddings=False,
        attention_bias=True,
        mlp_bias=True,
        bos_token_id=1,
        eos_token_id=2,
    )
    save_random_model(transformers.LlamaForCausalLM(config), 11, output_dir, "1GB")


def save_random_qwen3(output_dir):
    config = transformers.Qwen3Config(
        vocab_size=RANDOM_VOCAB_SIZE,
        hidden_size=64,
        intermediate_size=144,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=512,
        rms_norm_eps=1e-6,
        rope_parameters={"rope_type": "default", "rope_theta": 1000000.0},
        tie_word_embeddings=True,
        attention_bias=False,
        bos_token_id=1,
        eos_token_id=2,
    )
    save_random_model(transformers.Qwen3ForCausalLM(config), 12, output_dir, "150KB")


def greedy(model, prompt_ids, count):
    """`count` tokens, whatever they are. The first of equal logits is taken."""
    ids = list(prompt_ids)
    output = model(input_ids=torch.tensor([ids]), use_cache=True)
    for _ in range(count):
        ids.append(int(torch.argmax(output.logits[0, -1])))
        output = model(
            input_ids=torch.tensor([ids[-1:]]),
            past_key_values=output.past_key_values,
            use_cache=True,
        )
    return ids[len(prompt_ids) :]


def top_logits(logits):
    """The TOP_COUNT largest of each row, ties by lowest id: ids and values [R, K]."""
    ids = torch.sort(logits, dim=-1, descending=True, stable=True).indices[:, :TOP_COUNT]
    return ids, torch.gather(logits, 1, ids)


class Fixture:
    def __init__(self, model_dir, name):
        self.model_dir = model_dir
        self.name = name
        self.model = transformers.AutoModelForCausalLM.from_pretrained(
            model_dir, dtype=torch.float32, attn_implementation="eager"
        ).eval()
        self.bf16_model = transformers.AutoModelForCausalLM.from_pretrained(
            model_dir, dtype=torch.bfloat16, attn_implementation="eager"
        ).eval()
        self.cases = []
        self.binary = bytearray()

    def _append(self, typecode, tensor):
        offset = len(self.binary)
        self.binary += array.array(typecode, tensor.reshape(-1).tolist()).tobytes()
        return offset

    def add_case(self, name, prompt_ids, greedy_count, prompt=None, row_count=None, full_rows=1):
        """Keeps the last `row_count` rows (default: all) and the last `full_rows` of them whole."""
        continuation = greedy(self.model, prompt_ids, greedy_count)
        ids = torch.tensor([prompt_ids + continuation[:-1]])
        logits = self.model(input_ids=ids).logits[0]
        rows = list(range(len(logits)))[-(row_count or len(logits)) :]
        kept = logits[rows]
        for i, token in enumerate(continuation):
            row = len(prompt_ids) - 1 + i
            assert int(torch.argmax(logits[row])) == token, (self.name, name, i)
        difference = self.bf16_model(input_ids=ids).logits[0][rows].float() - kept
        top_ids, top_values = top_logits(kept)
        top_offset = self._append("i", top_ids)
        self._append("f", top_values)
        case = {"name": name}
        if prompt is not None:
            case["prompt"] = prompt
        case |= {
            "prompt_token_ids": prompt_ids,
            "greedy_token_ids": continuation,
            "rows": rows,
            "top_offset": top_offset,
            "full_rows": [
                {"row": row, "offset": self._append("f", logits[row])}
                for row in rows[len(rows) - full_rows :]
            ],
            "bf16_max_abs_diff": float(difference.abs().max()),
            "bf16_rms_diff": float(difference.square().mean().sqrt()),
        }
        self.cases.append(case)
        print(
            f"{self.name} {name}: {len(prompt_ids)} + {greedy_count} tokens,"
            f" bf16 differs by {case['bf16_max_abs_diff']:.4f} at most,"
            f" {case['bf16_rms_diff']:.4f} rms"
        )

    def save(self, output_dir):
        output_dir.mkdir(parents=True, exist_ok=True)
        content = {
            "model": self.model_dir.name,
            "made_with": {
                "torch": torch.__version__,
                "transformers": transformers.__version__,
                "tokenizers": tokenizers.__version__,
                "safetensors": safetensors.__version__,
            },
            "vocab_size": self.model.config.vocab_size,
            "top_count": TOP_COUNT,
            "bin_file": f"{self.name}.bin",
            "cases": self.cases,
        }
        text = json.dumps(content, ensure_ascii=True)
        (output_dir / f"{self.name}.json").write_text(text + "\n", encoding="utf-8")
        (output_dir / f"{self.name}.bin").write_bytes(self.binary)


def make_random_fixture(model_dir, name, seed):
    fixture = Fixture(model_dir, name)
    generator = torch.Generator().manual_seed(seed)
    for length, row_count in ((1, None), (17, None), (45, None), (300, 24)):
        ids = torch.randint(3, RANDOM_VOCAB_SIZE, (length,), generator=generator).tolist()
        fixture.add_case(f"ids_{length}", ids, 24, row_count=row_count, full_rows=2)
    return fixture


def make_tiny_fixture(model_dir):
    fixture = Fixture(model_dir, "tiny-kjv")
    tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
    for name, prompt in TINY_PROMPTS.items():
        fixture.add_case(name, tokenizer.encode(prompt).ids, 40, prompt=prompt)
    ids = tokenizer.encode(TINY_LONG_PROMPT).ids
    assert 520 < len(ids) < 980, len(ids)
    fixture.add_case("long", ids, 32, prompt=TINY_LONG_PROMPT, row_count=64)
    return fixture


def make_smollm2_fixture(model_dir):
    fixture = Fixture(model_dir, "smollm2")
    tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
    for i, (name, question) in enumerate(SMOLLM2_PROMPTS.items()):
        prompt = SMOLLM2_TEMPLATE.format(question)
        full_rows = 1 if i == 0 else 0
        fixture.add_case(
            name, tokenizer.encode(prompt).ids, 64, prompt=prompt, row_count=65, full_rows=full_rows
        )
    return fixture


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument("--smollm2", type=pathlib.Path)
    args = parser.parse_args()
    torch.set_grad_enabled(False)

    save_random_llama(args.data / "random-llama")
    save_random_qwen3(args.data / "random-qwen3")
    fixtures = [
        make_random_fixture(args.data / "random-llama", "random-llama", 21),
        make_random_fixture(args.data / "random-qwen3", "random-qwen3", 22),
    ]
    if (args.data / "tiny-kjv").is_dir():
        fixtures.append(make_tiny_fixture(args.data / "tiny-kjv"))
    if args.smollm2 is not None:
        fixtures.append(make_smollm2_fixture(args.smollm2))
    for fixture in fixtures:
        fixture.save(args.data / "reference")
    size = sum(path.stat().st_size for path in (args.data / "reference").iterdir())
    print(f"DATA/reference holds {size} bytes")
    assert size < 2_000_000


if __name__ == "__main__":
    main()
