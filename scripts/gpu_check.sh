#!/bin/bash
# Tests and times the CUDA layer and the model on a machine with a GPU, in under 10 minutes: gpu_check.sh BUILD_DIR [OUT_DIR]
# BUILD_DIR/bin holds cuda_tests and dsmoe; nothing is built. Writes cuda_tests.log, sanitizers.log, bench.json, skew.json,
# model.json, batches.json, bench.txt to OUT_DIR; the exit status is that of the first step that failed. PROFILE="1 16384" also profiles those token
# counts with ncu.
set -u
bin=$(cd "$1/bin" && pwd)
out=${2:-.}
mkdir -p "$out"
failed=0
exec 3>&2
step() { # step NAME SECONDS COMMAND...: says how it ended and how long it took
  local name=$1 limit=$2 start=$SECONDS status
  shift 2
  timeout "$limit" "$@"
  status=$?
  echo "$name: exit $status after $((SECONDS - start)) s" >&3
  [ $failed -ne 0 ] || failed=$status
}

nvidia-smi --query-gpu=name,clocks.sm,power.limit,driver_version --format=csv,noheader
DSMOE_LOG=launch step cuda_tests 330 "$bin/cuda_tests" >"$out/cuda_tests.log" 2>&1
grep -E "FAILED|PASSED|SKIPPED" "$out/cuda_tests.log"

: >"$out/sanitizers.log"
if command -v compute-sanitizer >/dev/null; then
  # Every kernel at small sizes: memory, races between threads, and waits of dependent launches.
  few='*AGraphGives*:*NaN*:*Ties*:*WeightsCome*:*ColumnParts*:*Plain*:*NoTokens*:CudaModel.Overrides*:CudaRows.Rot*:CudaRows.Add*:CudaLinear.Several*'
  for tool in memcheck racecheck; do
    step "compute-sanitizer $tool" 60 compute-sanitizer --tool "$tool" --error-exitcode 9 "$bin/cuda_tests" \
      --gtest_filter="$few" >>"$out/sanitizers.log" 2>&1
  done
  grep -E "SUMMARY|FAILED|PASSED" "$out/sanitizers.log"
else
  echo "compute-sanitizer is not there: not run"
fi

layer=("$bin/dsmoe" bench layer --device cuda --dtype bf16 --backward --grad-dtype f32,bf16)
step bench 120 "${layer[@]}" --json >"$out/bench.json"
step "bench --skew" 40 "${layer[@]}" --json --skew --tokens 16384 >"$out/skew.json"
step "bench --dtype f32" 30 "$bin/dsmoe" bench layer --device cuda --dtype f32 --tokens 1,64 --backward >"$out/bench.txt"
cat "$out/bench.txt"
model=("$bin/dsmoe" bench model --device cuda --preset deepseek-moe-16b --dtype bf16 --json)
step "bench model" 40 "${model[@]}" -p 512,4096 -n 128 -b 1 >"$out/model.json"
step "bench model, batches" 60 "${model[@]}" -p 512 -n 128 -b 8,32,128,256 -r 3 >"$out/batches.json"
[ ! -s "$out/bench.json" ] || python3 - "$out/bench.json" <<'END' || true
import json, sys
report = json.load(open(sys.argv[1]))
print(report["device_name"], report["kernels"], "off by", report["error_against_reference"])
for r in report["results"]:
    extra = f'{r["extra_bytes"] / 2**30:.2f} GiB extra' if "extra_bytes" in r else ""
    print(f'{r["tokens"]:6} {r["pass"]:17} {r["gradients"]:5} {r["seconds"] * 1e6:10.1f} us  {r["share_of_bound"]:.2f} of the bound  {extra}')
END

for tokens in ${PROFILE:-}; do
  step "ncu $tokens" 60 ncu --clock-control none \
    --metrics gpu__time_duration.sum,dram__throughput.avg.pct_of_peak_sustained_elapsed,sm__throughput.avg.pct_of_peak_sustained_elapsed \
    -k 'regex:gate|plan|down|combine|backward|slice|finish|grouped|gather|route' -c 40 \
    "$bin/dsmoe" bench layer --device cuda --dtype bf16 --backward --no-check --repeat 1 --tokens "$tokens" \
    >"$out/ncu_$tokens.log" 2>&1
done
exit $failed
