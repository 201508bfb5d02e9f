"""Trains the tiny Llama model that tests load (tests/data/tiny-kjv).

Usage: python train_tiny_model.py --text kjv.txt --output tests/data/tiny-kjv
Needs a CUDA GPU (minutes on an H200), torch 2.11.0, transformers 5.17.0, tokenizers 0.23.2 and
safetensors 0.8.0. tests/reference/fetch_training_text.sh makes kjv.txt: the King James Bible,
whose copyright has expired, as Debian packages it.

The model is trained on chapters as plain text and on ChatML exchanges whose question names a verse
and whose answer is the text from that verse on, so that it ends its answers by itself. Seeded, but
a GPU does not promise the same weights twice: the directory is committed.
"""

import argparse
import json
import pathlib
import random
import re
import time

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

SEED = 20240229
VOCAB_SIZE = 2048
CONTEXT = 1024
END_OF_TEXT, MESSAGE_START, MESSAGE_END = SPECIAL_TOKENS = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
]
CHAT_TEMPLATE = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content']"
    " + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def read_chapters(path):
    """[(name of the chapter, [verse, ...]), ...]"""
    chapters = []
    for line in path.read_text(encoding="ascii").splitlines():
        if not line:
            continue
        verse = re.fullmatch(r" +(\d+) (.*)", line)
        if verse is None:
            chapters.append((line, []))
        else:
            assert int(verse[1]) == len(chapters[-1][1]) + 1, line
            chapters[-1][1].append(verse[2])
    assert len(chapters) == 1189, len(chapters)
    return chapters


def chapter_text(name, verses):
    lines = [f"{number} {verse}" for number, verse in enumerate(verses, 1)]
    return name + "\n" + "\n".join(lines) + "\n"


def chat_text(rng, name, verses, first):
    count = rng.randint(1, 4)
    answer = " ".join(verses[first : first + count])
    return (
        f"{MESSAGE_START}user\n{name}:{first + 1}{MESSAGE_END}\n"
        f"{MESSAGE_START}assistant\n{answer}{MESSAGE_END}\n"
    )


def train_tokenizer(texts):
    """Byte-level BPE with the pre-tokeniser of SmolLM2: single digits, then GPT-2's words."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    assert tokenizer.get_vocab_size() == VOCAB_SIZE
    return tokenizer


def make_stream(tokenizer, chapters, rng):
    """One epoch: every chapter as text and every verse once as a question, in random order."""
    documents = []
    for name, verses in chapters:
        documents.append(chapter_text(name, verses) + END_OF_TEXT)
        starts = range(0, len(verses), 2)
        documents += [chat_text(rng, name, verses, start) for start in starts]
    rng.shuffle(documents)
    ids = []
    for encoding in tokenizer.encode_batch(documents):
        ids += encoding.ids
    return torch.tensor(ids, dtype=torch.int64)


def make_model(tokenizer):
    torch.manual_seed(SEED)
    config = transformers.LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=192,
        intermediate_size=512,
        num_hidden_layers=6,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=CONTEXT,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        tie_word_embeddings=True,
        attention_bias=False,
        mlp_bias=False,
        bos_token_id=tokenizer.token_to_id(MESSAGE_START),
        eos_token_id=tokenizer.token_to_id(MESSAGE_END),
        pad_token_id=tokenizer.token_to_id(END_OF_TEXT),
    )
    return transformers.LlamaForCausalLM(config)


def learning_rate(step, steps, peak):
    warmup = 100
    if step < warmup:
        return peak * (step + 1) / warmup
    return peak * max(0.02, (steps - step) / (steps - warmup))


def train(model, tokenizer, chapters, steps, batch_size, device):
    rng = random.Random(SEED)
    model.to(device).train()
    decayed = [p for p in model.parameters() if p.ndim == 2]
    others = [p for p in model.parameters() if p.ndim != 2]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}],
        betas=(0.9, 0.95),
        fused=device == "cuda",
    )
    batches = iter(())
    started = time.monotonic()
    for step in range(steps):
        batch = next(batches, None)
        if batch is None:
            stream = make_stream(tokenizer, chapters, rng)
            # Cut at another offset each epoch; the last, incomplete batch is left out.
            stream = stream[rng.randrange(CONTEXT) :]
            rows = stream[: len(stream) // CONTEXT * CONTEXT].view(-1, CONTEXT)
            batches = iter(rows.split(batch_size)[: max(1, len(rows) // batch_size)])
            batch = next(batches)
        batch = batch.to(device)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, steps, 3e-3)
        with torch.autocast(device, dtype=torch.bfloat16):
            logits = model(input_ids=batch, use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(
            logits[:, :-1].float().reshape(-1, VOCAB_SIZE), batch[:, 1:].reshape(-1)
        )
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 100 == 0 or step + 1 == steps:
            seconds = time.monotonic() - started
            print(f"step {step} loss {loss.item():.3f} {seconds:.0f} s", flush=True)


def save(model, tokenizer, output_dir):
    output_dir.mkdir(parents=True, exist_ok=True)
    model = model.to("cpu", torch.bfloat16).eval()
    model.generation_config = transformers.GenerationConfig(
        bos_token_id=model.config.bos_token_id,
        eos_token_id=[
            tokenizer.token_to_id(END_OF_TEXT),
            tokenizer.token_to_id(MESSAGE_END),
        ],
        pad_token_id=model.config.pad_token_id,
    )
    model.save_pretrained(output_dir)
    (output_dir / "model.safetensors").chmod(0o644)
    tokenizer.save(str(output_dir / "tokenizer.json"))
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": False,
        "clean_up_tokenization_spaces": False,
        "bos_token": MESSAGE_START,
        "eos_token": MESSAGE_END,
        "pad_token": END_OF_TEXT,
        "chat_template": CHAT_TEMPLATE,
        "model_max_length": CONTEXT,
    }
    (output_dir / "tokenizer_config.json").write_text(
        json.dumps(tokenizer_config, indent=2) + "\n", encoding="utf-8"
    )
    return model.float()


def show_samples(model, tokenizer):
    for prompt in (
        "And it came to pass in those days, that",
        "Psalms 151\n1 ",
        f"{MESSAGE_START}user\nGenesis 1:3{MESSAGE_END}\n{MESSAGE_START}assistant\n",
        f"{MESSAGE_START}user\nIsaiah 67:1{MESSAGE_END}\n{MESSAGE_START}assistant\n",
    ):
        ids = torch.tensor([tokenizer.encode(prompt).ids])
        out = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=96, do_sample=False
        )
        print("----\n" + tokenizer.decode(out[0].tolist(), skip_special_tokens=False))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--text", type=pathlib.Path, required=True)
    parser.add_argument("--output", type=pathlib.Path, required=True)
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()

    chapters = read_chapters(args.text)
    tokenizer = train_tokenizer(chapter_text(name, verses) for name, verses in chapters)
    model = make_model(tokenizer)
    print(f"{sum(p.numel() for p in model.parameters())} parameters")
    train(model, tokenizer, chapters, args.steps, args.batch_size, args.device)
    show_samples(save(model, tokenizer, args.output), tokenizer)
    for path in sorted(args.output.iterdir()):
        print(f"{path.stat().st_size:9} {path.name}")


if __name__ == "__main__":
    main()
