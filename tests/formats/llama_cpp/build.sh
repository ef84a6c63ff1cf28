#!/usr/bin/env bash
# Builds llama_logits with a llama.cpp that is built in its own tree, with shared libraries or without: build.sh LLAMA_CPP OUT
set -euo pipefail
[ $# -eq 2 ] || { echo "usage: $0 LLAMA_CPP OUT" >&2; exit 2; }
lib=$1/build/bin
libraries=(-L"$lib" -Wl,-rpath,"$lib" -lllama -lggml -lggml-base)
if [ ! -e "$lib/libllama.so" ]; then
  ggml=$1/build/ggml/src
  libraries=("$1/build/src/libllama.a" "$ggml/libggml.a" "$ggml/libggml-cpu.a" "$ggml/libggml-base.a" -fopenmp -lpthread -ldl)
fi
c++ -std=c++17 -O1 -I"$1/include" -I"$1/ggml/include" "$(dirname "$0")/llama_logits.cpp" -o "$2" "${libraries[@]}"
