#!/bin/bash
# Checks and times the CUDA layer on a machine with a GPU: gpu_check.sh DIR [OUT]
# DIR holds cuda_tests and cuda_layer_bench (and libfmt, when that is not installed).
set -u
dir=$(cd "$1" && pwd)
out=${2:-/tmp}
export LD_LIBRARY_PATH=$dir:/usr/local/cuda/lib64:${LD_LIBRARY_PATH:-}
nvidia-smi --query-gpu=name,clocks.sm,power.limit,driver_version --format=csv,noheader
time timeout "${TEST_SECONDS:-120}" "$dir/cuda_tests" ${TEST_ARGS:-} 2>&1 | tee "$out/tests.log" | tail -"${TEST_LINES:-70}"
timeout "${BENCH_SECONDS:-60}" "$dir/cuda_layer_bench" 2>&1 | tee "$out/bench.log"
timeout 30 "$dir/cuda_layer_bench" --skew --tokens 16384 2>&1 | tee -a "$out/bench.log"
if [ -n "${PROFILE:-}" ] && command -v ncu >/dev/null; then
  for t in $PROFILE; do
    timeout 60 ncu --clock-control none --metrics gpu__time_duration.sum,sm__throughput.avg.pct_of_peak_sustained_elapsed,dram__throughput.avg.pct_of_peak_sustained_elapsed,lts__t_bytes.sum.per_second \
      -k 'regex:gate|plan|down|combine|backward|slice|finish|grouped' "$dir/cuda_layer_bench" --once --tokens "$t" >"$out/ncu_$t.log" 2>&1
    echo "== ncu, $t tokens"
    grep -E "^  [a-z_]+.*\(|gpu__time_duration|throughput|lts__t" "$out/ncu_$t.log" | sed -E 's/void //; s/dsmoe::cuda:://g; s/\(.*Context.*//' | awk '/^  [A-Za-z_].*/ && !/sm__|dram__|gpu__|lts__/ {name=$1} /dram__/{d=$NF} /gpu__time/{g=$NF} /lts__/{l=$(NF)} /sm__/{print name, "us="g, "dram%="d, "lts="l, "sm%="$NF}'
  done
fi
