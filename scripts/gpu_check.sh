#!/bin/bash
# Checks and times the CUDA layer on a machine with a GPU: gpu_check.sh BUILD_DIR [OUT_DIR]
# BUILD_DIR/bin holds cuda_tests and dsmoe. PROFILE="1 16384" also profiles those token counts with ncu.
set -u
bin=$(cd "$1/bin" && pwd)
out=${2:-.}
nvidia-smi --query-gpu=name,clocks.sm,power.limit,driver_version --format=csv,noheader
DSMOE_LOG=launch timeout 240 "$bin/cuda_tests" >"$out/cuda_tests.log" 2>&1
echo "cuda_tests: exit $?"
grep -E "FAILED|PASSED|SKIPPED" "$out/cuda_tests.log"
for tool in memcheck racecheck; do
  timeout 240 compute-sanitizer --tool $tool "$bin/cuda_tests" --gtest_filter='*Graph*:*NaN*:*Ties*:*Weights*' 2>&1 |
    grep -E "SUMMARY|FAILED|PASSED"
done
timeout 240 "$bin/dsmoe" bench layer --device cuda --dtype bf16 --backward | tee "$out/bench.log"
timeout 120 "$bin/dsmoe" bench layer --device cuda --dtype bf16 --backward --skew --tokens 16384 | tee -a "$out/bench.log"
for tokens in ${PROFILE:-}; do
  timeout 60 ncu --clock-control none \
    --metrics gpu__time_duration.sum,dram__throughput.avg.pct_of_peak_sustained_elapsed,sm__throughput.avg.pct_of_peak_sustained_elapsed \
    -k 'regex:gate|plan|down|combine|backward|slice|finish|grouped|gather|route' -c 40 \
    "$bin/dsmoe" bench layer --device cuda --dtype bf16 --backward --no-check --repeat 1 --tokens "$tokens" \
    >"$out/ncu_$tokens.log" 2>&1
done
