#!/usr/bin/env python3
"""Compares the tokenizer with Hugging Face `tokenizers`, in both directions, on texts of many scripts.

usage: compare_with_hf.py TOKENIZER_ENCODE_LINES DATA_FOLDER [--texts N] [--seed S]

TOKENIZER_ENCODE_LINES is the program built from encode_lines.cpp, DATA_FOLDER holds the real vocabulary (deepseek-llm/).
Exit status 77 (skipped) when the package is not installed. Two differences are wanted and left out:
- an added character such as U+00F6 decodes to itself here, to U+FFFD there (it is also a byte of the byte-level alphabet);
- characters younger than the Unicode version of PCRE2 have other properties there;
- an added token that is looked for in normalized text is decoded to itself here and in tokenizers 0.22, to its normalized
  text in 0.23;
- of bytes in a row that are no text (byte_fallback), each is U+FFFD there, also those that are characters.
"""
import argparse
import itertools
import json
import os
import random
import subprocess
import sys
import tempfile
import unicodedata

try:
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
except ImportError:
    print("skipped: the Python package tokenizers is not installed")
    sys.exit(77)

SPLITS = {
    "gpt4": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "qwen2": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "gpt4o": r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
             r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
             r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "space_end": r"\s+$",
    "words": r"\w+",
    "not_words": r"\W+",
    "boundary": r"\b",
    "line_start": r"^.",
    "not_space": r"\S{2,3}",
    "vowels": r"[aeiou\d]{,2}",
    "empty": r"x*",
    "hex": r"\h+\v?",
    "script": r"\p{Han}+|\p{Greek}|\p{^L}{3}",
    "atomic": r"(?>a+)b|(?<=[ae])n|(?<!\s)t(?!h)",
    "letters": r"\s?[A-Za-z\u00b5\u00c0-\u00d6]+",
}
BLOCKS = [(0x20, 0x7F), (0x20, 0x7F), (0xA0, 0x250), (0x370, 0x530), (0x530, 0x700), (0x900, 0xE00), (0xE00, 0x1200),
          (0x1780, 0x1800), (0x1E00, 0x2070), (0x2000, 0x206F), (0x2070, 0x2C00), (0x3000, 0x3100), (0x4E00, 0x9FA6),
          (0xAC00, 0xD7A4), (0xFB00, 0xFB50), (0xFE00, 0x10000), (0x10400, 0x10500), (0x1D400, 0x1D800),
          (0x1F300, 0x1FA00), (0x20000, 0x20100)]
SPECIAL_CHARACTERS = "  \t\n\r\n\u0085\u00a0\u2028\u3000\u180e\u200b\u200d\ufe0f\u0301\u0130\u017f\u00df\u01c5" \
    "øöúÿõ÷ûýÀùÁþü0123456789²½Ⅷ٣'’\"\u0000\ufffd"
WORDS = ["the", "The", " and", "don't", "I'LL", " we've", "3.14", "2024", "http://x.y/z?q=1", "def f(x):\n    return x",
         "你好", "世界", "こんにちは", "안녕", "Привет", "γειά", "Äpfel", "naïve", "ß", "🦙", "👩‍👩‍👧", "\r\n", "\n\n", "   ", "\t"]


def assigned(c):
    if c == 0xEBA:  # its combining class is younger than the tables of the package's NFC
        return False
    return not 0xD800 <= c <= 0xDFFF and unicodedata.category(chr(c)) != "Cn"


def young_punctuation():
    """Characters that became punctuation after the tables of the package's Punctuation were made."""
    split = pre_tokenizers.Punctuation("isolated")
    marks = (chr(c) for c in range(0x80, 0x110000) if unicodedata.category(chr(c)).startswith("P"))
    return {ord(c) for c in marks if len(split.pre_tokenize_str("a" + c + "a")) == 1}


YOUNG = young_punctuation()
BYTES = [f"<0x{b:02X}>" for b in range(256)]
MARK = "\u2581"


def random_text(rng, extra):
    parts = []
    for _ in range(rng.randint(1, 12)):
        kind = rng.random()
        if kind < 0.35:
            parts.append(rng.choice(WORDS))
        elif kind < 0.5:
            parts.append("".join(rng.choice(SPECIAL_CHARACTERS) for _ in range(rng.randint(1, 6))))
        elif kind < 0.6 and extra:
            parts.append(rng.choice(extra))
        else:
            low, high = rng.choice(BLOCKS)
            characters = (rng.randrange(low, high) for _ in range(rng.randint(1, 8)))
            parts.append("".join(chr(c) for c in characters if assigned(c) and c not in YOUNG))
        if rng.random() < 0.3:
            parts.append(" ")
    return "".join(parts)


def run(program, folder, lines, *arguments):
    text = "".join(json.dumps(line) + "\n" for line in lines)
    done = subprocess.run([program, folder, *arguments], input=text.encode(), stdout=subprocess.PIPE, check=True)
    return [json.loads(line) for line in done.stdout.decode().split("\n")[:-1]]


def compare(name, program, folder, texts, check_decode, *arguments):
    theirs = Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
    theirs.encode_special_tokens = "--no-special" in arguments
    ours = run(program, folder, texts, *arguments)
    want = [e.ids for e in theirs.encode_batch(texts, add_special_tokens=False)]
    failures = [(t, w, o) for t, w, o in zip(texts, want, ours) if w != o]
    if check_decode:
        fallback = {theirs.token_to_id(byte) for byte in BYTES} - {None}
        added = theirs.get_added_tokens_decoder().values()
        differs = {theirs.token_to_id(t.content) for t in added if (t.normalized if fallback else len(t.content) == 1)}
        rng = random.Random(1)
        size = theirs.get_vocab_size()
        ids = [[i for i in e if i not in differs] for e in want]
        left_out = differs | fallback
        ids += [[i for i in (rng.randrange(size) for _ in range(rng.randint(1, 10))) if i not in left_out] for _ in range(2000)]
        failures += [(i, w, o) for i, w, o in
                     zip(ids, theirs.decode_batch(ids, skip_special_tokens=False), run(program, folder, ids)) if w != o]
    print(f"{name}: {len(texts)} texts, {len(failures)} differences")
    for text, want_one, got in failures[:5]:
        print(f"  {text!r}\n    there {want_one}\n    here  {got}")
    return len(failures)


def variants():
    """(name, normalizer, pre-tokenizer, options of the BPE model) for pipelines of every supported kind."""
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    for use_regex, prefix in itertools.product([False, True], repeat=2):
        yield f"ByteLevel {use_regex} {prefix}", None, pre_tokenizers.ByteLevel(prefix, use_regex=use_regex), {}
    behaviors = ["isolated", "removed", "merged_with_previous", "merged_with_next", "contiguous"]
    for (name, pattern), behavior, invert in itertools.product(SPLITS.items(), behaviors, [False, True]):
        split = pre_tokenizers.Split(Regex(pattern), behavior, invert)
        yield f"Split {name} {behavior} {invert}", None, pre_tokenizers.Sequence([split, byte_level]), {}
    others = [pre_tokenizers.Split(".", "merged_with_previous"), pre_tokenizers.Digits(False), pre_tokenizers.Digits(True),
              pre_tokenizers.Punctuation("isolated"), pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Whitespace()]
    for i, other in enumerate(others):
        yield f"other {i}", None, pre_tokenizers.Sequence([other, byte_level]), {}
        yield f"other {i} prefix", None, pre_tokenizers.Sequence([other, pre_tokenizers.ByteLevel(True)]), {}
    steps = [normalizers.Replace(Regex(r"[ \t]+"), "_"), normalizers.Replace("the", "a.*b"), normalizers.Prepend(">"),
             normalizers.Strip(True, False), normalizers.Strip(False, True), normalizers.NFC(),
             normalizers.Sequence([normalizers.NFC(), normalizers.Replace("n", "m")]),
             normalizers.Sequence([normalizers.Strip(), normalizers.Replace(Regex("n+"), "-"), normalizers.Prepend("«")])]
    for i, step in enumerate(steps):
        yield f"normalizer {i}", step, pre_tokenizers.ByteLevel(False), {}
    yield "ignore_merges", None, pre_tokenizers.ByteLevel(False), {"ignore_merges": True}
    yield "unk", None, pre_tokenizers.ByteLevel(False), {"unk_token": "<unk>"}
    yield "fuse_unk", None, pre_tokenizers.ByteLevel(False), {"unk_token": "<unk>", "fuse_unk": True}


ADDED = [AddedToken("<one>", normalized=False), AddedToken("word", single_word=True, normalized=False),
         AddedToken("<left>", lstrip=True, normalized=False), AddedToken("<right>", rstrip=True, normalized=False),
         AddedToken("the thing", normalized=True), AddedToken("<both>", lstrip=True, rstrip=True, normalized=True),
         AddedToken("<on", normalized=False), AddedToken("é", normalized=True, single_word=True)]


def make(normalizer, pre_tokenizer, options, corpus, folder):
    tokenizer = Tokenizer(models.BPE(**options))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(False)
    tokenizer.decoder = decoders.ByteLevel()
    # Without the full alphabet there are bytes for unk_token to stand in for.
    alphabet = [] if "unk_token" in options else pre_tokenizers.ByteLevel.alphabet()
    specials = ["<s>", "</s>"] + ([options["unk_token"]] if "unk_token" in options else [])
    tokenizer.train_from_iterator(corpus, trainers.BpeTrainer(vocab_size=700, initial_alphabet=alphabet, special_tokens=specials,
                                                              show_progress=False))
    tokenizer.add_tokens(ADDED)
    tokenizer.pre_tokenizer = pre_tokenizer
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer.save(os.path.join(folder, "tokenizer.json"))


def character_variants():
    """(name, normalizer, pre-tokenizer, whether a text loses a first space, options) of vocabularies as SentencePiece makes them."""
    marks = normalizers.Replace(" ", MARK)
    legacy = normalizers.Sequence([normalizers.Prepend(MARK), marks])
    yield "marks in front", legacy, None, True, {}
    yield "marks alone", marks, None, False, {}
    yield "marks, pieces", marks, pre_tokenizers.Split(MARK, "merged_with_next"), False, {}
    yield "ignore_merges of characters", marks, pre_tokenizers.Split(MARK, "merged_with_next"), False, {"ignore_merges": True}
    for scheme, split in itertools.product(["first", "always", "never"], [False, True]):
        metaspace = pre_tokenizers.Metaspace(MARK, prepend_scheme=scheme, split=split)
        yield f"Metaspace {scheme} {split}", None, metaspace, scheme != "never", {}
    yield "Metaspace behind NFC", normalizers.NFC(), pre_tokenizers.Metaspace(MARK, prepend_scheme="first", split=False), True, {}


def make_of_characters(normalizer, pre_tokenizer, strip, options, corpus, folder):
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace(MARK)
    trained.train_from_iterator(corpus, trainers.BpeTrainer(vocab_size=400, show_progress=False))
    pieces = sorted(trained.get_vocab(), key=trained.get_vocab().get)
    # The order of such files: control tokens, bytes, what is joined, characters. All pairs whose sum is a token are joined.
    pieces = ["<unk>", "<s>", "</s>"] + BYTES + [p for p in pieces if len(p) > 1] + [p for p in pieces if len(p) == 1]
    vocab = {piece: i for i, piece in enumerate(pieces)}
    merges = [(p[:i], p[i:]) for p in pieces[259:] for i in range(len(p) - 1, 0, -1) if p[:i] in vocab and p[i:] in vocab]
    tokenizer = Tokenizer(models.BPE(vocab, merges, byte_fallback=True, fuse_unk=True, unk_token="<unk>", **options))
    tokenizer.decoder = decoders.Sequence([decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse()] +
                                          ([decoders.Strip(" ", 1, 0)] if strip else []))
    tokenizer.add_special_tokens([AddedToken(t, normalized=False) for t in ("<unk>", "<s>", "</s>")])
    tokenizer.add_tokens(ADDED)
    if pre_tokenizer is not None:
        tokenizer.pre_tokenizer = pre_tokenizer
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.save(os.path.join(folder, "tokenizer.json"))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("data")
    parser.add_argument("--texts", type=int, default=20000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    rng = random.Random(arguments.seed)
    folder = os.path.join(arguments.data, "deepseek-llm")
    texts = [random_text(rng, ["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜begin"]) for _ in range(arguments.texts)]
    texts += open(os.path.join(folder, "cases.inp"), encoding="utf-8", newline="").read().split("\n__ggml_vocab_test__\n")
    every = [chr(c) for c in range(0x110000) if assigned(c)]
    bad = compare("real vocabulary", arguments.program, folder, texts, True)
    bad += compare("real vocabulary, specials as text", arguments.program, folder, texts, False, "--no-special")
    bad += compare("every character", arguments.program, folder, every, True)
    bad += compare("every character, in between", arguments.program, folder, ["a" + c + " b 1" + c + "。" + c for c in every], False)
    extra = ["<one>", "word", " word ", "<left>", "  <left>", "<right> \t ", "the thing", " <both> ", "<on", "é", "<s>", "</s>"]
    corpus = [" ".join(WORDS) + " word the thing n aann"] * 4
    for name, normalizer, pre_tokenizer, options in variants():
        texts = [random_text(rng, extra) for _ in range(max(200, arguments.texts // 40))]
        with tempfile.TemporaryDirectory() as made:
            make(normalizer, pre_tokenizer, options, corpus, made)
            bad += compare(name, arguments.program, made, texts, name == "ignore_merges")
            bad += compare(name + ", specials as text", arguments.program, made, texts, False, "--no-special")
    extra += ["<0x41>", MARK, "  ", MARK + MARK, "▁the", "<unk>"]
    for name, normalizer, pre_tokenizer, strip, options in character_variants():
        texts = [random_text(rng, extra) for _ in range(max(200, arguments.texts // 10))] + ["", " ", "  ", "a", " a", MARK]
        with tempfile.TemporaryDirectory() as made:
            make_of_characters(normalizer, pre_tokenizer, strip, options, corpus, made)
            bad += compare(name, arguments.program, made, texts, True)
            bad += compare(name + ", specials as text", arguments.program, made, texts, False, "--no-special")
            if name == "marks in front":
                bad += compare(name + ", every character", arguments.program, made, every, True)
    print("total differences:", bad)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
