#!/usr/bin/env bash
# Sets up and builds the program on a bare Debian 12 or Ubuntu 24.04 machine, trains a tiny DeepSeekMoE on built-in text, and
# lets it write. Needs no GPU and no data; some minutes on two cores.
set -euo pipefail
cd "$(dirname "$0")"
source scripts/setup.sh

case ${1:-} in
  "") ;;
  --help | -h)
    echo "Usage: ./demo.sh"
    echo "Installs the Debian packages that are missing (with root or sudo), builds build/release/bin/dsmoe, and runs it."
    exit 0
    ;;
  *) die "there is no flag \"$1\"; see ./demo.sh --help" ;;
esac

ensure_packages "${BUILD_PACKAGES[@]}"
echo "Building build/release/bin/dsmoe"
build release dsmoe_cli || die "the build failed; see above"

show() {
  printf '\n$ dsmoe %s\n' "$*"
  build/release/bin/dsmoe "$@"
}
out=build/demo-model
rm -rf "$out"
show info
show plan --preset tiny

echo
echo "A DeepSeekMoE with 3 M parameters learns seven kinds of text from scratch, in about two minutes on two cores. Before"
echo "training, its loss is ln 512 = 6.2."
show train --preset tiny --data builtin -o "$out" --steps 500 --batch-size 16 --seq-len 128 --lr 4e-3 --eval-every 100

write() {
  printf '\n%s' "$1"
  build/release/bin/dsmoe generate -m "$out" -q -n 90 --temp 0.3 --seed 1 -p "$1"
}
printf '\nIt goes on from a beginning, in two of the kinds (dsmoe generate -m %s -n 90 --temp 0.3 -p "..."):\n' "$out"
write "Once there was a"
write '{"id": 7, "name": '

report=build/demo-report.html
printf '\nAnd where its tokens go:\n'
show inspect -m "$out" --data builtin --limit 3000 -o "$report"

cat <<END

The report of its experts is $PWD/$report: open it in a browser.

Look further:
  tail -1 $out/log.jsonl                                  the last step: loss, balance, expert load
  build/release/bin/dsmoe train --resume -o $out --steps 2000
  build/release/bin/dsmoe generate -m $out -p "..." --json --routing    which experts each token chose
  build/release/bin/dsmoe eval -m $out --data builtin --mask-top 1/8,2/8 --no-shared    what its experts are worth
  build/release/bin/dsmoe compare --preset tiny -o build/comparison    what the architecture is worth, in some minutes
  build/release/bin/dsmoe bench train                     training speed on this machine, beside its peak
END
