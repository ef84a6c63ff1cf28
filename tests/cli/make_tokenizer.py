"""Writes data/tokenizer: the first kilo of DeepSeek's vocabulary, for the tests that run the program.

python3 tests/cli/make_tokenizer.py

The tokenizer of 100,000 tokens (tests/tokenizer/data/deepseek-llm) takes seconds to load with sanitizers, and the program is run
hundreds of times. Ids are those of the whole one; bos, eos and the first added character follow at 1000.
"""
import json
import pathlib

TOKENS = 1000
here = pathlib.Path(__file__).parent
source = here.parent / "tokenizer/data/deepseek-llm"
target = here / "data/tokenizer"

tokenizer = json.loads((source / "tokenizer.json").read_text())
model = tokenizer["model"]
vocab = {token: i for token, i in model["vocab"].items() if i < TOKENS}
model["merges"] = [merge for merge in model["merges"] if merge.replace(" ", "", 1) in vocab]
model["vocab"] = vocab
tokenizer["added_tokens"] = tokenizer["added_tokens"][:3]
for i, token in enumerate(tokenizer["added_tokens"]):
    token["id"] = TOKENS + i
target.mkdir(parents=True, exist_ok=True)
(target / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False) + "\n")
(target / "tokenizer_config.json").write_text((source / "tokenizer_config.json").read_text())
