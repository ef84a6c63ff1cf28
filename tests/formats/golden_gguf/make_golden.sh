#!/usr/bin/env bash
# Makes the golden files with our program and a llama.cpp that is built in its own tree:
#   make_golden.sh DSMOE LLAMA_CPP
set -euo pipefail
[ $# -eq 2 ] || { echo "usage: $0 DSMOE LLAMA_CPP" >&2; exit 2; }
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$here/../llama_cpp/build.sh" "$2" "$work/llama_logits"
for type in f32 q4_k_m; do
  "$1" init --config "$here/$type.json" --dtype f32 --seed 3 -o "$work/$type" 2> /dev/null
  if [ $type = f32 ]; then
    "$1" convert "$work/$type" -o "$here/$type.gguf" --force 2> /dev/null
  else
    "$1" quantize "$work/$type" -o "$here/$type.gguf" --type $type --force 2> /dev/null
  fi
  # shellcheck disable=SC2046
  "$work/llama_logits" "$here/$type.gguf" "$here/$type.logits" $(cat "$here/ids.txt")
done
