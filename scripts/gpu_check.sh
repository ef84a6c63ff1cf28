#!/bin/bash
# Tests and times the CUDA layer and the model on a machine with a GPU, in under 10 minutes: gpu_check.sh BUILD_DIR [OUT_DIR]
# BUILD_DIR/bin holds cuda_tests and dsmoe; nothing is built. Writes to OUT_DIR: cuda_tests.log, sanitizers.log, files.log; bench.json,
# skew.json, bench.txt of the layer; of the model model.json (bf16: prompts, time to first token, one sequence), batches.json, q8_0.json,
# q4_k_m.json, kv_q8_0.json, small.json; summary.json with the rows of all of them. The exit status is that of the first step that failed.
# STEPS="tests sanitizers files layer model" chooses among the parts (these); RANDOM_SECONDS (10) is how long random
# requests are compared with the CPU's; PROFILE="1 16384" also profiles those token counts with ncu.
# STEPS=ranks is a part of its own: 2, 4 and 8 ranks (RANKS="2 4 8") share the one GPU over NCCL, whose speed then says nothing. It needs mpirun,
# a build with DSMOE_MPI and DSMOE_NCCL, and its dsmoe, multi_tests and gpu_checks; compute-sanitizer and nsys where they are there. It writes
# ranks/*.log, ranks.tsv and, of two ranks that train, ranks/timeline.N.nsys-rep: how long messages take while kernels run is in summary.json.
set -u
if [ $# -lt 1 ] || [ "$1" = --help ]; then
  sed -n '/^# /s/^# //p;/^set -u/q' "$0"
  exit 2
fi
bin=$(cd "$1/bin" && pwd)
root=$(cd "$(dirname "$0")/.." && pwd)
out=${2:-.}
mkdir -p "$out"
failed=0
exec 3>&2
step() { # step NAME SECONDS COMMAND...: says how it ended and how long it took
  local name=$1 limit=$2 start=$SECONDS status
  shift 2
  timeout -k 10 "$limit" "$@"
  status=$?
  echo "$name: exit $status after $((SECONDS - start)) s" >&3
  [ $failed -ne 0 ] || failed=$status
  return $status
}
part() { [[ " ${STEPS:-tests sanitizers files layer model} " == *" $1 "* ]]; }

nvidia-smi --query-gpu=name,clocks.sm,power.limit,driver_version --format=csv,noheader
if part tests; then
  DSMOE_RANDOM_SECONDS=${RANDOM_SECONDS:-10} DSMOE_LOG=launch step cuda_tests 240 "$bin/cuda_tests" >"$out/cuda_tests.log" 2>&1
  grep -E "FAILED|PASSED|SKIPPED|random models" "$out/cuda_tests.log"
fi

if part sanitizers && ! command -v compute-sanitizer >/dev/null; then
  echo "compute-sanitizer is not there: not run"
elif part sanitizers; then
  : >"$out/sanitizers.log"
  # Every kernel at small sizes: memory, races between threads, waits of dependent launches, memory that nobody wrote, barriers.
  few='*AGraphGives*:*NaN*:*Ties*:*WeightsCome*:*ColumnParts*:*Plain*:*NoTokens*:CudaModel.Overrides*:CudaRows.Rot*:CudaRows.Add*:CudaLinear.Several*'
  small='CudaRows.RotateAndStore:CudaRows.RowsGo*:CudaAttention.NoTokens:CudaAttention.StagesGive*:CudaAttention.QuantizedCacheHas*:CudaSample.ARow*:CudaPacked.EmbeddingRows:CudaPacked.DenseLayer'
  sanitize() { # sanitize TOOL SECONDS FILTER
    step "compute-sanitizer $1" "$2" compute-sanitizer --tool "$1" --error-exitcode 9 "$bin/cuda_tests" --gtest_filter="$3" \
      >>"$out/sanitizers.log" 2>&1
  }
  sanitize memcheck 60 "$few"
  sanitize racecheck 60 "$few"
  for tool in memcheck initcheck synccheck; do sanitize $tool 40 "$small"; done
  sanitize racecheck 60 "$small:-CudaSample*" # a whole vocabulary takes it minutes
  grep -E "SUMMARY|FAILED|PASSED" "$out/sanitizers.log"
fi

# Files as the program writes them, with a real tokenizer: a quantized one on the GPU gives the text of its weights in bf16. And mistakes:
# a device that is not there is one line.
files() {
  local tokenizer=$root/tests/cli/data/tokenizer folder type
  folder=$(mktemp -d) || return 1
  cat >"$folder/config.json" <<'END'
{"model_type": "deepseek", "vocab_size": 1024, "hidden_size": 256, "intermediate_size": 512, "moe_intermediate_size": 256,
 "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 4, "n_shared_experts": 2, "n_routed_experts": 12,
 "num_experts_per_tok": 3, "first_k_dense_replace": 1, "max_position_embeddings": 512, "initializer_range": 0.1}
END
  "$bin/dsmoe" init --config "$folder/config.json" --tokenizer "$tokenizer" --seed 3 -o "$folder/model" &&
    for type in q8_0 q4_0 q4_k_m; do
      "$bin/dsmoe" quantize "$folder/model" -o "$folder/$type.gguf" --type $type || break
      for dtype in auto bf16; do
        "$bin/dsmoe" generate -m "$folder/$type.gguf" --device cuda --dtype $dtype -p "Once upon a time" -n 64 --temp 0 --ignore-eos \
          --quiet >"$folder/$type.$dtype.txt" || break 2
      done
      cmp "$folder/$type.auto.txt" "$folder/$type.bf16.txt" && echo "$type: the same text packed and unpacked" || break
    done
  local status=$?
  local message
  message=$(CUDA_VISIBLE_DEVICES=99 "$bin/dsmoe" generate -m "$folder/model" --device cuda -p a -n 1 2>&1)
  local code=$?
  echo "$message"
  [ $code -eq 1 ] && [ "$(wc -l <<<"$message")" -eq 1 ] && [[ "$message" == *"no CUDA device"* ]] || status=1
  rm -r "$folder"
  return $status
}
if part files; then
  export -f files
  export bin root
  step files 60 bash -c files >"$out/files.log" 2>&1
  cat "$out/files.log"
fi

if part layer; then
  layer=("$bin/dsmoe" bench layer --device cuda --dtype bf16 --backward --grad-dtype f32,bf16)
  step bench 60 "${layer[@]}" --json >"$out/bench.json"
  step "bench --skew" 30 "${layer[@]}" --json --skew --tokens 16384 >"$out/skew.json"
  step "bench --dtype f32" 30 "$bin/dsmoe" bench layer --device cuda --dtype f32 --tokens 1,64 --backward >"$out/bench.txt"
  cat "$out/bench.txt"
fi

# The small model of docs/performance.md: D 512, 8 layers.
small_config() {
  cat <<'END'
{"model_type": "deepseek", "vocab_size": 8192, "hidden_size": 512, "intermediate_size": 1408, "moe_intermediate_size": 352,
 "num_hidden_layers": 8, "num_attention_heads": 4, "num_key_value_heads": 4, "n_shared_experts": 2, "n_routed_experts": 64,
 "num_experts_per_tok": 6, "first_k_dense_replace": 1, "max_position_embeddings": 4096, "eos_token_id": null, "bos_token_id": null}
END
}
small() {
  local folder
  folder=$(mktemp -d) || return 1
  small_config >"$folder/config.json" && "$bin/dsmoe" init --config "$folder/config.json" --type bf16 -o "$folder/small" >/dev/null &&
    "$bin/dsmoe" bench model --device cuda -m "$folder/small" --json -p 512 -n 128 -b 1,8,32 -r 3
  local status=$?
  rm -r "$folder"
  return $status
}
if part model; then
  model=("$bin/dsmoe" bench model --device cuda --preset deepseek-moe-16b --json)
  step "bench model" 30 "${model[@]}" --dtype bf16 -p 512,4096 -n 128 -b 1 -r 3 >"$out/model.json"
  step "bench model, batches" 50 "${model[@]}" --dtype bf16 -p 512 -n 128 -b 8,32,128,256 -r 2 >"$out/batches.json"
  step "bench model, q8_0" 45 "${model[@]}" --type q8_0 -p 512 -n 128 -b 1,8,32,128,256 -r 2 >"$out/q8_0.json"
  step "bench model, q4_k_m" 45 "${model[@]}" --type q4_k_m -p 512 -n 128 -b 1,8,32,128,256 -r 2 >"$out/q4_k_m.json"
  step "bench model, kv-type q8_0" 30 "${model[@]}" --dtype bf16 --kv-type q8_0 -p 4096 -n 128 -b 1,256 -r 2 >"$out/kv_q8_0.json"
  export -f small small_config
  export bin
  step "bench model, small" 30 bash -c small >"$out/small.json"
fi

# rank_check RANKS TEST SECONDS: a test of tests/multi/gpu_test.cpp. One that did not run has proven nothing.
rank_check() {
  local log=$out/ranks/$2.$1.log start=$SECONDS result=failed
  step "$1 ranks, $2" "$3" "$bin/multi_tests" --gtest_also_run_disabled_tests --gtest_filter="MultiGpu.$2/$1" >"$log" 2>&1
  if grep -q '^\[  SKIPPED \]' "$log"; then
    result=skipped
  elif grep -q '^\[  PASSED  \] 1 test' "$log"; then
    result=passed
  else
    [ $failed -ne 0 ] || failed=1
    grep -A12 -m1 ': Failure$' "$log"
  fi
  printf '%s\t%s\t%s\t%s\n' "$2" "$1" $result $((SECONDS - start)) | tee -a "$out/ranks.tsv"
}
# What NCCL's kernels and the others do at the same time, while two ranks train.
timeline() {
  local folder rank
  folder=$(mktemp -d) || return 1
  small_config >"$folder/config.json"
  mpirun --allow-run-as-root --oversubscribe --bind-to none -n 2 bash -c 'NCCL_SOCKET_IFNAME=lo NCCL_HOSTID=rank$OMPI_COMM_WORLD_RANK \
    exec nsys profile --trace=cuda --sample=none --cpuctxsw=none --force-overwrite=true -o "$0/timeline.$OMPI_COMM_WORLD_RANK" "$@"' \
    "$out/ranks" "$bin/dsmoe" train -o "$folder/run" --config "$folder/config.json" --device cuda --dtype bf16 --batch-size 8 --seq-len 512 \
    --steps 6 --zero 1 --expert-parallel 2 --holdout 0 --eval-every 0 --save-every 0
  local status=$?
  for rank in 0 1; do
    nsys stats --report cuda_gpu_trace --format csv "$out/ranks/timeline.$rank.nsys-rep" >"$out/ranks/timeline.$rank.csv" || status=1
  done
  rm -r "$folder"
  return $status
}
if part ranks && ! { command -v mpirun && [ -x "$bin/multi_tests" ] && ldd "$bin/gpu_checks" | grep libnccl; } >/dev/null 2>&1; then
  echo "ranks: there must be mpirun, and in $bin multi_tests and gpu_checks of a build with DSMOE_MPI and DSMOE_NCCL"
  [ $failed -ne 0 ] || failed=1
elif part ranks; then
  mkdir -p "$out/ranks"
  : >"$out/ranks.tsv"
  for ranks in ${RANKS:-2 4 8}; do
    for check in MessagesAndSums:60 Layer:180 FiftySteps:180 FiftyStepsWithZero1:180 FiftyStepsWithZero2:180 AKilledRank:90 \
      ARunGoesOnWithAnyNumberOfRanks:120 AnswersOfOneProcess:120 AServersAnswersOfOneProcess:120; do
      rank_check "$ranks" ${check/:/ }
    done
  done
  rank_check 2 DISABLED_UnderASanitizer 300
  if command -v nsys >/dev/null; then
    export -f timeline small_config
    export bin out
    step "2 ranks, time line" 180 bash -c timeline >"$out/ranks/timeline.log" 2>&1
  else
    echo "nsys is not there: no time line of two ranks"
  fi
fi

# All that was measured in this run, in one place.
command -v python3 >/dev/null && (cd "$out" && python3 - <<'END') || true
import json, os
summary = {}
for name in ("model", "batches", "q8_0", "q4_k_m", "kv_q8_0", "small", "bench", "skew"):
    try:
        report = json.load(open(name + ".json"))
    except (OSError, ValueError):
        continue
    summary[name] = report
    if name in ("bench", "skew"):
        print(name, report["device_name"], report["kernels"], "off by", report["error_against_reference"])
        for r in report["results"]:
            extra = f'{r["extra_bytes"] / 2**30:.2f} GiB extra' if "extra_bytes" in r else ""
            print(f'{r["tokens"]:6} {r["pass"]:17} {r["gradients"]:5} {r["seconds"] * 1e6:10.1f} us  {r["share_of_bound"]:.2f} of the bound  {extra}')
        continue
    print(f'{name}: {report["model"]} {report["dtype"]}, cache {report["kv_dtype"]}, at most {report["peak_bytes"] / 2**30:.1f} GiB')
    for r in report["results"]:
        first = f'  first token after {r["seconds"] * 1e3:.1f} ms' if r["test"].startswith("pp") and r["sequences"] == 1 else ""
        print(f'  {r["test"]:12} {r["tokens_per_second"]:10.1f} tokens/s  {r["share_of_bound"]:.2f} of the bound{first}')
# Seconds of the first list's intervals, and of them those in which some of the second's run.
def seconds_of(intervals, others):
    def union(list_):
        merged = []
        for begin, end in sorted(list_):
            if merged and begin <= merged[-1][1]:
                merged[-1][1] = max(merged[-1][1], end)
            else:
                merged.append([begin, end])
        return merged
    first, second, both, at = union(intervals), union(others), 0, 0
    for begin, end in first:
        while at < len(second) and second[at][1] <= begin:
            at += 1
        for other in second[at:]:
            if other[0] >= end:
                break
            both += min(end, other[1]) - max(begin, other[0])
    return sum(end - begin for begin, end in first) * 1e-9, both * 1e-9
def overlap(name):
    import csv
    lines = open(name).read().splitlines()
    while lines and not lines[0].startswith("Start (ns)"):
        lines.pop(0)
    messages, kernels = [], []
    for row in csv.DictReader(lines):
        begin = int(row["Start (ns)"])
        if not row["Name"].startswith("["):  # [CUDA memcpy ...]
            (messages if "nccl" in row["Name"] else kernels).append((begin, begin + int(row["Duration (ns)"])))
    return dict(zip(("messages", "while_kernels_run"), seconds_of(messages, kernels)))
if os.path.exists("ranks.tsv"):
    rows = [line.rstrip("\n").split("\t") for line in open("ranks.tsv")]
    summary["ranks"] = {"checks": [{"check": c, "ranks": int(n), "result": r, "seconds": int(s)} for c, n, r, s in rows], "overlap": {}}
    for rank in ("0", "1"):
        if os.path.exists(f"ranks/timeline.{rank}.csv"):
            summary["ranks"]["overlap"][rank] = o = overlap(f"ranks/timeline.{rank}.csv")
            print(f'rank {rank}: messages {o["messages"] * 1e3:.1f} ms, {o["while_kernels_run"] * 1e3:.1f} ms of it while kernels run')
json.dump(summary, open("summary.json", "w"), indent=1)
END

for tokens in ${PROFILE:-}; do
  step "ncu $tokens" 60 ncu --clock-control none \
    --metrics gpu__time_duration.sum,dram__throughput.avg.pct_of_peak_sustained_elapsed,sm__throughput.avg.pct_of_peak_sustained_elapsed \
    -k 'regex:gate|plan|down|combine|backward|slice|finish|grouped|gather|route' -c 40 \
    "$bin/dsmoe" bench layer --device cuda --dtype bf16 --backward --no-check --repeat 1 --tokens "$tokens" \
    >"$out/ncu_$tokens.log" 2>&1
done
exit $failed
