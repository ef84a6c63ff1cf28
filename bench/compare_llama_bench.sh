#!/usr/bin/env bash
# Prompt processing and generation of one GGUF file in dsmoe and in any llama-bench programs, run in turns so that a
# slow moment of the machine hits all alike; prints medians, our ratio to each, and the range of that ratio over the rounds.
#
#   bench/compare_llama_bench.sh MODEL.gguf LLAMA_BENCH...
#
# DSMOE (program, default build/release/bin/dsmoe), THREADS (2), PROMPT (512), GENERATE (64), ROUNDS (5) and REPEAT (1, of
# each test in a round) may be set; PROMPT=0 or GENERATE=0 leaves that test out.
set -euo pipefail

if [ $# -lt 2 ]; then
  echo "usage: $0 MODEL.gguf LLAMA_BENCH..." >&2
  exit 2
fi
model=$1
shift
root=$(cd "$(dirname "$0")/.." && pwd)
dsmoe=${DSMOE:-$root/build/release/bin/dsmoe}
threads=${THREADS:-2} prompt=${PROMPT:-512} generate=${GENERATE:-64} rounds=${ROUNDS:-5} repeat=${REPEAT:-1}
for program in "$dsmoe" "$@"; do
  command -v "$program" > /dev/null || { echo "$0: there is no program $program" >&2; exit 1; }
done
[ -f "$model" ] || { echo "$0: there is no file $model" >&2; exit 1; }

results=$(mktemp)
trap 'rm -f "$results"' EXIT
# One line per figure: program number, test, tokens per second.
for round in $(seq "$rounds"); do
  echo "round $round of $rounds" >&2
  "$dsmoe" bench model -m "$model" -t "$threads" -p "$prompt" -n "$generate" -r "$repeat" --json |
    python3 -c 'import json,sys
for r in json.load(sys.stdin)["results"]: print(0, r["test"], r["tokens_per_second"], r["bound_tokens_per_second"])' >> "$results"
  number=0
  for peer in "$@"; do
    number=$((number + 1))
    "$peer" -m "$model" -t "$threads" -p "$prompt" -n "$generate" -r "$repeat" -o json 2> /dev/null |
      python3 -c 'import json,statistics,sys
for r in json.load(sys.stdin):
  test = "pp%d" % r["n_prompt"] if r["n_prompt"] else "tg%d" % r["n_gen"]
  print(sys.argv[1], test, statistics.median(r["samples_ts"]), 0)' "$number" >> "$results"
  done
done

python3 - "$results" "$dsmoe" "$@" << 'PYTHON'
import statistics
import sys

figures, bounds = {}, {}
for line in open(sys.argv[1]):
    number, test, rate, bound = line.split()
    figures.setdefault(test, {}).setdefault(int(number), []).append(float(rate))
    if float(bound) > 0:
        bounds.setdefault(test, []).append(float(bound))
names = sys.argv[2:]
print(f"{'test':<8} {'t/s':>10} {'bound':>10} {'ours is':>8} {'in rounds':>14}  program")
for test, by_program in figures.items():
    ours = statistics.median(by_program[0])
    for number, name in enumerate(names):
        rate = statistics.median(by_program[number])
        bound = f"{statistics.median(bounds[test]):.1f}" if number == 0 else ""
        ratio = span = ""
        if number > 0:
            each = [a / b for a, b in zip(by_program[0], by_program[number])]
            ratio, span = f"{ours / rate:.2f}x", f"{min(each):.2f} to {max(each):.2f}"
        print(f"{test:<8} {rate:>10.2f} {bound:>10} {ratio:>8} {span:>14}  {name}")
PYTHON
