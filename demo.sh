#!/usr/bin/env bash
# Builds the program on a bare Debian 12 or Ubuntu 24.04 machine, trains a tiny DeepSeekMoE on built-in text, lets it write,
# and reports on its experts. Needs no GPU and no data; takes some minutes on two cores.
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

# write STOP PROMPT
write() {
  printf '\n%s' "$2"
  build/release/bin/dsmoe generate -m "$out" -q -n 60 --temp 0 --stop "$1" -p "$2"
}
printf '\nIt completes a prompt in four of the kinds (dsmoe generate -m %s --temp 0 --stop "..." -p "..."):\n' "$out"
write ' Soon' 'Tom was a kind boy. One morning, he saw a blue bird in the garden. The bird was'
write $'\n' $'User: What is the capital of Japan?\n\nAssistant:'
write $'\n' '{"id": 7, "name":'
write $'\n' 'Das ist ein kleiner Hund.'

report=build/demo-report.html
printf '\nWhich experts its tokens go to:\n'
show inspect -m "$out" --data builtin --limit 3000 -o "$report" --force

cat <<END

The report on its experts is $PWD/$report: open it in a browser.

Try next:
  tail -1 $out/log.jsonl                                  the last step: loss, balance, expert load
  build/release/bin/dsmoe train --resume -o $out --steps 2000    resume, and train longer
  build/release/bin/dsmoe generate -m $out -p "..." --json --routing    the experts of each token
  build/release/bin/dsmoe eval -m $out --data builtin --mask-top 1/8,2/8 --no-shared    ablations: mask the top experts, drop the shared ones
  build/release/bin/dsmoe compare --preset tiny -o build/comparison    compare architectures at equal compute; takes minutes
  build/release/bin/dsmoe bench train                     training speed beside this machine's peak
END
