#!/bin/sh
# The runs of docs/paper.md: paper/run.sh DSMOE CORPUS OUT [further options of dsmoe compare, as --device cuda]
#
# CORPUS is a folder that scripts/corpus.py made. OUT gets a tokenizer, the comparison (OUT/compare; started again, it goes on where
# it was) and what the experts of one model of each kind do in each domain (OUT/inspect). STEPS, BATCH, WARMUP, EVERY (steps between
# evaluations), SEEDS and ALSO (more architectures; empty for none), from the environment, make it longer or shorter.
set -eu
dsmoe=$1 corpus=$2 out=$3
shift 3
also=${ALSO-2+6/62,4+4/60,1+3/31}
mkdir -p "$out"
[ -e "$out/tokenizer" ] || "$dsmoe" tokenizer train --data "$corpus/train" --vocab-size 16384 --out "$out/tokenizer"
"$dsmoe" compare --config "$(dirname "$0")/config.json" --tokenizer "$out/tokenizer" --data "$corpus/train" --eval-data "$corpus/heldout" \
  --dtype bf16 --seq-len 1024 --batch-size "${BATCH:-16}" --steps "${STEPS:-440}" --warmup-steps "${WARMUP:-40}" --lr 2e-3 \
  --eval-every "${EVERY:-88}" --eval-sequences 256 --ablation-sequences 16 ${also:+--also "$also"} --seeds "${SEEDS:-4}" "$@" \
  -o "$out/compare"
mkdir -p "$out/inspect"
for run in "$out"/compare/runs/[abc]-*-seed0; do
  "$dsmoe" inspect -m "$run" --data "$corpus"/heldout/*.jsonl --limit 8192 --json >"$out/inspect/$(basename "$run").json"
done
