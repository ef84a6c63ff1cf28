#!/usr/bin/env python3
"""Compares vocabularies of tiktoken's ranks with tiktoken itself, cut and with control tokens as two families of models have
them, and the tokenizer.json that is made of them with Hugging Face `tokenizers`.

usage: compare_with_tiktoken.py TOKENIZER_ENCODE_LINES DATA_FOLDER [--texts N] [--seed S]

TOKENIZER_ENCODE_LINES is the program built from encode_lines.cpp, DATA_FOLDER holds a small vocabulary (tiktoken/). Exit
status 77 (skipped) when a package is not installed. Left out, as in compare_with_hf.py, are characters younger than the
Unicode version of PCRE2.
"""
import argparse
import base64
import json
import os
import random
import subprocess
import sys
import tempfile
import unicodedata

import compare_with_hf as hf  # skips without tokenizers

try:
    import tiktoken
except ImportError:
    print("skipped: the Python package tiktoken is not installed")
    sys.exit(77)

# How the Python code of these families cuts texts.
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
ENDING = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
KIMI = "|".join([r"[\p{Han}]+", rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+{ENDING}", rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*{ENDING}",
                 r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])
# Control tokens of Kimi-K2, by their distance from the vocabulary; some are not marked as special.
KIMI_NAMES = {0: "[BOS]", 1: "[EOS]", 2: "<|im_end|>", 3: "<|im_user|>", 4: "<|im_assistant|>", 9: "[EOT]", 10: "<|im_system|>",
              11: "<|tool_calls_section_begin|>", 17: "<|im_middle|>", 22: "<think>", 254: "[UNK]", 255: "[PAD]"}
KIMI_PLAIN = {"<|tool_calls_section_begin|>", "<think>"}
HUNYUAN_NAMES = ["<|endoftext|>", "<|startoftext|>", "<|bos|>", "<|eos|>", "<|pad|>"] + [f"<|extra_{i}|>" for i in range(205)]
FILES = {"kimi": "tiktoken.model", "hunyuan": "hy.tiktoken"}


def specials_of(family, first):
    names = [KIMI_NAMES.get(i, f"<|reserved_token_{first + i}|>") for i in range(256)] if family == "kimi" else HUNYUAN_NAMES
    return {name: first + i for i, name in enumerate(names)}


def config_of(family, first):
    """tokenizer_config.json as the releases have it."""
    if family == "hunyuan":
        return {"tokenizer_class": "HYTokenizer", "auto_map": {"AutoTokenizer": ["tokenization_hy.HYTokenizer", None]},
                "eos_token": "<|eos|>", "pad_token": "<|pad|>",
                "chat_template": "{% for m in messages %}<|startoftext|>{{ m['content'] }}<|extra_0|>{% endfor %}"}
    flags = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
    return {"added_tokens_decoder": {str(first + i): {"content": name, **flags, "special": name not in KIMI_PLAIN}
                                     for i, name in KIMI_NAMES.items()},
            "auto_map": {"AutoTokenizer": ["tokenization_kimi.TikTokenTokenizer", None]},
            "bos_token": "[BOS]", "eos_token": "[EOS]", "pad_token": "[PAD]", "unk_token": "[UNK]",
            "model_max_length": 1000000000000000019884624838656, "tokenizer_class": "TikTokenTokenizer",
            "chat_template": "{% for m in messages %}<|im_user|>user<|im_middle|>{{ m['content'] }}<|im_end|>{% endfor %}"}


class Peer:
    def __init__(self, family, ranks):
        self.family, self.specials = family, specials_of(family, len(ranks))
        pattern = KIMI if family == "kimi" else hf.SPLITS["qwen2"]
        self.encoding = tiktoken.Encoding(family, pat_str=pattern, mergeable_ranks=ranks, special_tokens=self.specials)

    def encode(self, text, special=True):
        text = unicodedata.normalize("NFC", text) if self.family == "hunyuan" else text
        return self.encoding.encode(text, allowed_special="all" if special else set(), disallowed_special=())


def rank_file(ranks):
    lines = (base64.b64encode(token).decode() + f" {rank}\n" for token, rank in sorted(ranks.items(), key=lambda item: item[1]))
    return "".join(lines)


def write_folder(folder, family, ranks):
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, FILES[family]), "w", encoding="ascii") as out:
        out.write(rank_file(ranks))
    with open(os.path.join(folder, "tokenizer_config.json"), "w", encoding="utf-8") as out:
        out.write(json.dumps(config_of(family, len(ranks)), indent=1) + "\n")


def random_ranks(rng, letters):
    """Tokens that nobody trained, in any order: some can never be joined, some are joined of others that come later."""
    tokens = {bytes([b]) for b in range(256)}
    for _ in range(rng.randint(3, 120)):
        token = "".join(rng.choice(letters) for _ in range(rng.randint(1, rng.choice([2, 4, 9])))).encode()
        cut = rng.random() < 0.2 and len(token) > 2
        tokens.add(token[1:] if cut else token)
    order = sorted(tokens)
    if rng.random() < 0.7:
        rng.shuffle(order)
    else:
        order.sort(key=len)
    return {token: rank for rank, token in enumerate(order)}


def repeating_text(rng, letters):
    period = [rng.choice(letters) for _ in range(rng.randint(1, 7))]
    return "".join(rng.choice(letters) if rng.random() < 0.15 else period[i % len(period)] for i in range(rng.randint(1, 200)))


def compare(name, program, folder, peer, texts, check_decode):
    bad = 0
    for special in [True, False]:
        # A token that is not marked as special and does not look so is found in any text here.
        some = texts if special else [t for t in texts if "<think>" not in t]
        want = [peer.encode(t, special) for t in some]
        got = hf.run(program, folder, some, *([] if special else ["--no-special"]))
        wrong = [(t, w, g) for t, w, g in zip(some, want, got) if w != g]
        print(f"{name}{'' if special else ', specials as text'}: {len(some)} texts, {sum(map(len, want))} tokens, {len(wrong)} differences")
        for text, there, here in wrong[:5]:
            print(f"  {text!r}\n    there {there}\n    here  {here}")
        bad += len(wrong)
    if check_decode:
        rng = random.Random(1)
        ids = [peer.encode(t) for t in texts[:3000]]
        ids += [[rng.randrange(peer.encoding.n_vocab) for _ in range(rng.randint(1, 10))] for _ in range(3000)]
        wrong = sum(peer.encoding.decode(i) != text for i, text in zip(ids, hf.run(program, folder, ids)))
        print(f"{name}, decoded: {len(ids)} texts, {wrong} differences")
        bad += wrong
    return bad


def compare_saved(name, program, folder, peer, texts):
    """What is saved is a tokenizer.json, which others read as we do."""
    with tempfile.TemporaryDirectory() as saved:
        subprocess.run([program, folder, "--save", saved], check=True)
        theirs = hf.Tokenizer.from_file(os.path.join(saved, "tokenizer.json"))
        want = [peer.encode(t) for t in texts]
        wrong = sum(w != e.ids for w, e in zip(want, theirs.encode_batch(texts, add_special_tokens=False)))
        wrong += sum(w != g for w, g in zip(want, hf.run(program, saved, texts)))
        print(f"{name}, its tokenizer.json: {len(texts)} texts, {wrong} differences")
        return wrong


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("data")
    parser.add_argument("--texts", type=int, default=20000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    rng, program, bad = random.Random(arguments.seed), arguments.program, 0
    with open(os.path.join(arguments.data, "tiktoken", "tiktoken.model"), "rb") as file:
        trained = {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in file)}
    every = [chr(c) for c in range(0x110000) if hf.assigned(c)]
    for family in FILES:
        peer = Peer(family, trained)
        extra = list(peer.specials)[:30] + ["<|extra_", "<|im_", "[EOS", "<|eos|>\u0338", "IT'S", "it'\u017f", "aB", "abCD", "aʼS", "ªB"]
        texts = [hf.random_text(rng, extra) for _ in range(arguments.texts)]
        with tempfile.TemporaryDirectory() as made:
            write_folder(made, family, trained)
            bad += compare(f"{family}, trained", program, made, peer, texts, True)
            bad += compare(f"{family}, every character", program, made, peer, every, False)
            bad += compare(f"{family}, every character in between", program, made, peer,
                           ["a" + c + " B1" + c + "。" + c + "Ab" for c in every], False)
            bad += compare_saved(f"{family}, trained", program, made, peer, texts)
            print("a control, which must differ:")
            other = Peer("kimi" if family == "hunyuan" else "hunyuan", trained)
            bad += 0 if compare(family, program, made, other, texts[:200], False) else 1
    for i in range(max(10, arguments.texts // 400)):
        family, letters = rng.choice(list(FILES)), rng.choice(["ab", "abc", "aB ", "aé你", "你好", " \n", "1'", "ab'sT "])
        ranks = random_ranks(rng, letters)
        peer, texts = Peer(family, ranks), [repeating_text(rng, letters) for _ in range(100)]
        with tempfile.TemporaryDirectory() as made:
            write_folder(made, family, ranks)
            bad += compare(f"{family}, random ranks {i}", program, made, peer, texts, i % 10 == 0)
            bad += compare_saved(f"{family}, random ranks {i}", program, made, peer, texts)
    print("total differences:", bad)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
