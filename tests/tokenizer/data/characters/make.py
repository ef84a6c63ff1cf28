#!/usr/bin/env python3
"""Makes a small tokenizer of the kind that SentencePiece's become (byte_fallback, a mark for every space) and what Hugging Face's
package makes of some texts: tokenizer.json, tokenizer_config.json and cases.json beside this script. Needs tokenizers 0.22 (PyPI).
"""
import json
import os
import random
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", ".."))
import compare_with_hf as hf  # noqa: E402

TEXTS = ["", " ", "  ", "a", " a", "the thing", "The thing  and\nthe other\t", "don't I'LL we've", "naïve Äpfel 🦙 👩‍👩‍👧", "你好 世界",
         "<s>the", "<s> the</s> and", "x<unk>y", "<0x41>", "\u2581the", "\u2581\u2581", "a\u2581b", "\u0000\u0085\ufeff", "e\u0301", "3.14 = π",
         "<left> a  <left>", "sword word"]


def main():
    name, normalizer, pre_tokenizer, strip, options = next(hf.character_variants())
    hf.make_of_characters(normalizer, pre_tokenizer, strip, options, [" ".join(hf.WORDS) + " word the thing n aann"] * 4, HERE)
    config = {"tokenizer_class": "LlamaTokenizerFast", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "add_bos_token": True,
              "chat_template": "{{ bos_token }}{% for m in messages %}[INST] {{ m['content'] }} [/INST]{% endfor %}"}
    with open(os.path.join(HERE, "tokenizer_config.json"), "w", encoding="utf-8") as out:
        out.write(json.dumps(config, indent=1) + "\n")
    rng = random.Random(5)
    texts = TEXTS + [hf.random_text(rng, ["<s>", " </s>", "<one>", "\u2581"]) for _ in range(60)]
    tokenizer = hf.Tokenizer.from_file(os.path.join(HERE, "tokenizer.json"))
    cases = []
    for text in texts:
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        cases.append({"text": text, "ids": ids, "decoded": tokenizer.decode(ids, skip_special_tokens=False)})
    with open(os.path.join(HERE, "cases.json"), "w", encoding="utf-8") as out:
        out.write("[\n" + ",\n".join(json.dumps(c) for c in cases) + "\n]\n")


if __name__ == "__main__":
    main()
