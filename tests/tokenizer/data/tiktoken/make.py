#!/usr/bin/env python3
"""Makes a small vocabulary of tiktoken's ranks as Kimi-K2 has it, and what the package tiktoken makes of some texts with it, cut as
Kimi-K2 and as Hunyuan-A13B cut them: tiktoken.model, tokenizer_config.json and cases.json beside this script. Needs tokenizers 0.22
and tiktoken 0.14 (PyPI).
"""
import json
import os
import random
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", ".."))
import compare_with_hf as hf  # noqa: E402
import compare_with_tiktoken as peer  # noqa: E402

CORPUS = ["The quick brown fox doesn't jump over THE lazy dog's fence; it's 2024 and we've 1,048,576 reasons.",
          "for (int i = 0; i < n; ++i) {\n    sum += values[i];\n}\n\nreturn sum;  // HelloWorld, snake_case, CamelCase\n",
          "汉字和假名 漢字とかな カタカナ 한국어 문장 Привет, мир! γειά σου κόσμε naïve Äpfel café 🦙👍🏽 中文 中文 世界 世界",
          "{\"name\": \"value\", \"list\": [1, 22, 333, 4444]}\t<html>\r\n\r\n    indented\n        more\n"]
TEXTS = ["", " ", "  ", "a", " a", "Hello World", "HelloWorld漢字テスト12345it's", "don't DON'T we'LL I'm'a", "12 123 1234 12345", "\n", "\r\n\r\n",
         "a\n b\n\n c ", "   x", "x   ", "\t\ta", "中文abc中文", "ABCdefGHI", "ÀÉaÀ", "ǅaǅ", "日本ひらがな々〇ーカナ", "한국어Korean한국어", "e\u0301 E\u0301e",
         "\u0301a", "!!!\n\n", " !a", "a/b/c", "<think>x</think>", "[BOS]a[EOS]", "<|im_user|>user<|im_middle|>hi<|im_end|>", "<|reserved_token_600|><|reserved_token_1299|>",
         "<|startoftext|>hi<|extra_0|><|eos|>", "<|extra_204|><|extra_205|>", "<|eos|>\u0338", "\u212b \u1100\u1161", "\u0000\u0085\ufeff\u200b", "🦙🦙 👍🏽",
         "ſs'ſ 'S", "a" * 300, " " * 100 + "x", "ab" * 120, "中" * 90, "A" * 70 + "b", "1" * 50]


def trained():
    tokenizer = hf.Tokenizer(hf.models.BPE())
    split = hf.pre_tokenizers.Split(hf.Regex(peer.KIMI), "isolated")
    tokenizer.pre_tokenizer = hf.pre_tokenizers.Sequence([split, hf.pre_tokenizers.ByteLevel(False, use_regex=False)])
    tokenizer.train_from_iterator(CORPUS * 3, hf.trainers.BpeTrainer(vocab_size=760, show_progress=False,
                                                                     initial_alphabet=hf.pre_tokenizers.ByteLevel.alphabet()))
    alphabet = {character: byte for byte, character in enumerate(byte_characters())}
    vocab = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    ranks = {bytes(alphabet[c] for c in token): rank for token, rank in vocab}
    # The two that no tokens are joined to, but that are tokens as pieces of a text: one of characters, one of half of one.
    for token in (" qxz", "\u2042\u2042"):
        ranks[token.encode()] = len(ranks)
    return ranks


def byte_characters():
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = iter(range(0x100, 0x200))
    return [chr(b) if b in printable else chr(next(others)) for b in range(256)]


def main():
    ranks = trained()
    peer.write_folder(HERE, "kimi", ranks)
    rng = random.Random(5)
    texts = TEXTS + [" qxz", " qxzq", "\u2042\u2042", "\u2042\u2042\u2042"]
    texts += [hf.random_text(rng, ["<|im_end|>", " <|eos|> ", "[PAD]", "<|reserved_token_700|>"]) for _ in range(60)]
    peers = {family: peer.Peer(family, ranks) for family in peer.FILES}
    cases = [{"text": text, **{family: peers[family].encode(text) for family in peers}} for text in texts]
    with open(os.path.join(HERE, "cases.json"), "w", encoding="utf-8") as out:
        out.write("[\n" + ",\n".join(json.dumps(c) for c in cases) + "\n]\n")


if __name__ == "__main__":
    main()
