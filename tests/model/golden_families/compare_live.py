#!/usr/bin/env python3
"""Compares the program with a live transformers: new random models of every case of make_golden.py, as a folder and as GGUF.

usage: compare_live.py DSMOE [--models N] [--seed S] [CASE ...]

Needs what make_golden.py needs; exit status 77 (skipped) where that is not installed. A sequence is longer than those of the
golden files. What is compared are the logits of every token: relative distance at most 1e-4.
"""
import argparse
import os
import pathlib
import subprocess
import sys
import tempfile

try:
    import numpy as np
    import torch
    import transformers
    from safetensors.numpy import load_file

    import make_golden as golden
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

LIMIT, TOKENS = 1e-4, 40


def logits_of(program, model, ids, folder):
    data, out = folder / "x.ids", folder / "logits.safetensors"
    data.write_text(" ".join(map(str, ids)) + "\n")
    subprocess.run([program, "eval", "-m", model, "--data", data, "-c", str(TOKENS), "--kv-type", "f32", "--logits", out,
                    "--force", "--json"], check=True, capture_output=True)
    return load_file(out)["logits"].reshape(TOKENS, -1)


def worst(got, want):
    return float((np.linalg.norm(got - want, axis=-1) / np.linalg.norm(want, axis=-1)).max())


def compare(program, name, seed):
    """The largest distance of a token's logits, of the folder and of GGUF (None where that cannot carry the model)."""
    model = golden.make_model(name)
    while True:
        golden.draw(model, seed)
        ids = torch.tensor(np.random.default_rng(seed + 9000).integers(2, 48, (1, TOKENS)))
        if golden.steady(model, ids):
            break
        seed += 100_000
    with torch.no_grad():
        want = model(input_ids=ids).logits[0].numpy()
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        golden.save(model, folder / name, golden.CASES[name][2])
        result = [worst(logits_of(program, folder / name, ids[0].tolist(), folder), want)]
        made = subprocess.run([program, "convert", folder / name, "-o", folder / "m.gguf", "--type", "f32"],
                              capture_output=True, text=True)
        if made.returncode and "keep the model as a Hugging Face folder" not in made.stderr:
            raise SystemExit(f"{name}: {made.stderr}")
        result.append(None if made.returncode else worst(logits_of(program, folder / "m.gguf", ids[0].tolist(), folder), want))
    return result


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("cases", nargs="*")
    parser.add_argument("--models", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1000)
    args = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.manual_seed(0)
    failed = False
    for name in args.cases or golden.CASES:
        for seed in range(args.seed, args.seed + args.models):
            folder, gguf = compare(os.path.abspath(args.program), name, seed)
            bad = not folder <= LIMIT or (gguf is not None and not gguf <= LIMIT)
            failed = failed or bad
            print(f"{name} seed {seed}: folder {folder:.1e}, GGUF {'not carried' if gguf is None else format(gguf, '.1e')}"
                  f"{'  FAILED' if bad else ''}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
