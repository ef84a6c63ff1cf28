#!/usr/bin/env python3
"""A share of a corpus: sample.py CORPUS OUT SHARE. Keeps the lines of CORPUS/train whose text has a hash below SHARE (0 to 1), so the
same lines on every machine and all of a smaller sample in a larger one; CORPUS/heldout is copied whole."""
import hashlib
import json
import pathlib
import shutil
import sys

corpus, out, share = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), float(sys.argv[3])
(out / "train").mkdir(parents=True)
shutil.copytree(corpus / "heldout", out / "heldout")
for path in sorted((corpus / "train").glob("*.jsonl")):
    with path.open("rb") as lines, (out / "train" / path.name).open("wb") as kept:
        for line in lines:
            text = json.loads(line)["text"].encode()
            if int.from_bytes(hashlib.sha256(text).digest()[:8], "big") < share * 2**64:
                kept.write(line)
