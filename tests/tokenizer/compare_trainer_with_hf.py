#!/usr/bin/env python3
"""Compares the BPE trainer with Hugging Face `tokenizers`: the same merges in the same order, and the file that it
writes gives the same ids there and here.

usage: compare_trainer_with_hf.py TOKENIZER_TRAIN_FILE TOKENIZER_ENCODE_LINES SOURCE_FOLDER

The text is this repository's own. Exit status 77 (skipped) when the package is not installed.
"""
import glob
import json
import os
import random
import subprocess
import sys
import tempfile

try:
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers
except ImportError:
    print("skipped: the Python package tokenizers is not installed")
    sys.exit(77)


def main():
    train, encode, source = sys.argv[1:]
    files = sorted(glob.glob(os.path.join(source, "src/**/*.cpp"), recursive=True) +
                   glob.glob(os.path.join(source, "**/*.md"), recursive=True))
    text = "".join(open(f, encoding="utf-8").read() for f in files if os.sep + "build" + os.sep not in f)
    text += "Ärger und Öl, naïve café. 你好世界 Привет 🦙\n" * 5
    bad = 0
    for pre_tokenizer in ["gpt-2", "deepseek-llm", "deepseek-v3", "llama-bpe"]:
        with tempfile.TemporaryDirectory() as made:
            path = os.path.join(made, "text")
            open(path, "w", encoding="utf-8").write(text)
            subprocess.run([train, path, "2000", pre_tokenizer, made], check=True)
            file = os.path.join(made, "tokenizer.json")
            ours = json.load(open(file, encoding="utf-8"))
            loaded = Tokenizer.from_file(file)

            specials = [t["content"] for t in ours["added_tokens"]]
            theirs = Tokenizer(models.BPE())
            theirs.pre_tokenizer = loaded.pre_tokenizer
            theirs.train_from_iterator([text], trainers.BpeTrainer(
                vocab_size=2000, min_frequency=2, special_tokens=specials, show_progress=False,
                initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
            want = [m if isinstance(m, str) else " ".join(m) for m in json.loads(theirs.to_str())["model"]["merges"]]
            if ours["model"]["merges"] != want:
                at = next(i for i, (a, b) in enumerate(zip(want + [""], ours["model"]["merges"] + [""])) if a != b)
                print(f"{pre_tokenizer}: merge {at} is {want[at]!r} there, {ours['model']['merges'][at]!r} here")
                bad += 1

            rng = random.Random(1)
            lines = [line for line in text.split("\n") if line]
            texts = [rng.choice(lines) for _ in range(3000)] + [a + rng.choice(lines) for a in specials] + \
                ["".join(chr(rng.choice([rng.randrange(32, 127), rng.randrange(0xA0, 0xD7FF)])) for _ in range(20)) for _ in range(500)]
            done = subprocess.run([encode, made], input="".join(json.dumps(t) + "\n" for t in texts).encode(),
                                  stdout=subprocess.PIPE, check=True)
            got = [json.loads(line) for line in done.stdout.decode().split("\n")[:-1]]
            differences = sum(loaded.encode(t, add_special_tokens=False).ids != g for t, g in zip(texts, got))
            ids = [loaded.token_to_id(t) for t in specials]
            if ids != [t["id"] for t in ours["added_tokens"]] or loaded.get_vocab_size() != 2000 or len(got) != len(texts):
                print(f"{pre_tokenizer}: special tokens {ids}, {loaded.get_vocab_size()} tokens, {len(got)} texts")
                bad += 1
            print(f"{pre_tokenizer}: {len(want)} merges, {len(texts)} texts, {differences} differences")
            bad += differences
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
