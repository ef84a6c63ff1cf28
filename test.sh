#!/usr/bin/env bash
# Sets up, builds and tests everything, on a bare Debian 12 or Ubuntu 24.04 machine. Needs no GPU.
set -euo pipefail
cd "$(dirname "$0")"
source scripts/setup.sh

usage() {
  cat <<'END'
Usage: ./test.sh [--quick]

Installs the Debian packages that are missing (with root or sudo), builds, and runs:
  release   the release build (build/release/bin/dsmoe) and its fast tests
  asan      the fast tests with address and undefined-behaviour sanitizers (clang); all code,
            benchmarks too, compiled with warnings as errors (but what only slow tests run)
  fuzz      every reader of foreign bytes, some seconds each, with libFuzzer, in that same build
  tsan      the layer, its ops, the threads, the engine and the server with the thread sanitizer (clang)
  multi     many processes: a build with MPI, and its tests under mpirun on this machine
  slow      the slow tests of the release build, among them the installed package and the longest of the next
  peers     comparisons with Hugging Face tokenizers and safetensors, tiktoken, llama.cpp's gguf, TensorBoard, Jinja, and with
            OpenAI's and LangChain's clients, and the Python package with NumPy; they come from PyPI into build/peers, and
            where it cannot be reached this is skipped. The package's tests with PyTorch run where that is installed
  cuda      compiles the CUDA code where nvcc is found, and tests it where there is a GPU
Each is built while the tests of the one before run, so the times of the summary are those that a step waited and tested.
The exit status is 0 when all of it passed.

  --quick   only the first
  --help    this text
END
}

quick=false
for argument in "$@"; do
  case $argument in
    --quick) quick=true ;;
    --help | -h) usage && exit 0 ;;
    *) die "there is no flag \"$argument\"; see ./test.sh --help" ;;
  esac
done

# tests BUILD PRESET [OPTION...]: runs the tests of a preset, which are in build/BUILD, and says why when some were skipped. Tests
# that fail in the release build run once more, alone: one that passes then depends on what runs beside it, and does not fail the
# step. The summary names both kinds. What a sanitizer found once is a bug, however often it is not seen again.
tests() {
  local log=build/$1/Testing/Temporary status=0 failures
  rm -f "$log/LastTestsFailed.log"
  "${RUN[@]}" ctest --preset "$2" --parallel "$(nproc)" "${@:3}" || status=$?
  { grep -hE 'cannot run here' "$log/LastTest.log" || true
    grep -hA1 ': Skipped$' "$log/LastTest.log" | grep -vE ': Skipped$|^--$' || true
  } | sort -u | sed 's/^/skipped: /'
  [[ $status -eq 0 ]] && return
  failures=$(failed_tests "$log")
  if [[ $1 == release && -n $failures ]] && "${RUN[@]}" ctest --preset "$2" "${@:3}" --rerun-failed; then
    note="failed beside others, passed alone: $failures"
    return
  fi
  note="failed: $(failed_tests "$log")"
  return $status
}

# failed_tests FOLDER: the names of the tests that the last run of CTest there lists as failed.
failed_tests() {
  cut -d: -f2- "$1/LastTestsFailed.log" 2>/dev/null | paste -sd' ' -
}

# ahead NAME: begins build_NAME in the background, where it takes what the tests at hand leave of the processors. It yields to
# them (nice), since some of them look at the clock. One build at a time: the one before has ended.
ahead_pid=
ahead() {
  mkdir -p build
  set -m  # a process group of its own, for the trap below
  (renice -n 10 $BASHPID >/dev/null; "build_$1") >"build/$1.ahead.log" 2>&1 </dev/null &
  ahead_pid=$!
  set +m
}
trap '[[ -z $ahead_pid ]] || kill -- "-$ahead_pid" 2>/dev/null || true' EXIT

# built NAME: waits for the build that `ahead` began, at full priority from here on.
built() {
  local status=0
  renice -n 0 -g "$ahead_pid" >/dev/null 2>&1 || true  # only root may; without it nothing else runs now anyway
  wait "$ahead_pid" || status=$?
  ahead_pid=
  [[ $status -eq 0 ]] || cat "build/$1.ahead.log"
  return $status
}

# The steps that build begin the next one's build before their own tests.
release() {
  local status=0
  build release -DDSMOE_PYTHON=OFF || status=$?
  $quick || ahead asan
  [[ $status -eq 0 ]] && tests release fast
}

# for_clang PRESET: forgets a folder that was configured for another compiler. CMake would start over in it without the
# preset's options, and nothing would be instrumented.
for_clang() {
  local cache=build/$1/CMakeCache.txt
  if [[ -f $cache ]] && ! grep -q '^CMAKE_CXX_COMPILER:.*clang' "$cache"; then rm -rf "build/$1"; fi
}

build_asan() {
  for_clang asan
  build asan -DDSMOE_WERROR=ON -DDSMOE_BUILD_BENCH=ON
}

asan() {
  local status=0
  built asan || status=$?
  ahead tsan
  [[ $status -eq 0 ]] && tests asan asan
}

readonly FUZZ_SECONDS=${FUZZ_SECONDS:-3}  # of each target; tests/fuzz/README.md
# fuzz_one PROGRAM: runs one libFuzzer target on its seeds and what earlier runs found.
fuzz_one() {
  local name=${1##*/} folder=build/asan/fuzz dict=()
  mkdir -p "$folder/$name"
  if [[ -f tests/fuzz/dict/${name%_fuzz}.dict ]]; then dict=(-dict="tests/fuzz/dict/${name%_fuzz}.dict"); fi
  # rss: what a hostile file makes a reader allocate. The sanitizers alone take some hundred MB.
  if "$1" -max_total_time=$FUZZ_SECONDS -timeout=20 -rss_limit_mb=2048 -max_len=1048576 -len_control=1000 "${dict[@]}" \
    -print_final_stats=1 -artifact_prefix="$folder/" "$folder/$name" "tests/fuzz/corpus/${name%_fuzz}" >"$folder/$name.log" 2>&1; then
    echo "$name: $(sed -n 's/^stat::number_of_executed_units: *//p' "$folder/$name.log") inputs, no failure"
  else
    tail -n 40 "$folder/$name.log"
    return 1
  fi
}

fuzz() {
  local program running=() status=0
  build asan fuzzers || return  # they are there, unless something else in that build failed
  for program in build/asan/bin/*_fuzz; do
    fuzz_one "$program" &
    running+=($!)
    if [[ ${#running[@]} -ge $(nproc) ]]; then
      wait "${running[0]}" || status=1
      running=("${running[@]:1}")
    fi
  done
  for program in "${running[@]}"; do wait "$program" || status=1; done
  return $status
}

# for_tsan COMMAND...: without address randomisation where it may be turned off: the thread sanitizer of Clang 14 cannot start
# under much of it.
for_tsan() {
  local RUN=(setarch "$(uname -m)" -R)
  "${RUN[@]}" true 2>/dev/null || RUN=()
  "$@"
}

build_tsan() {
  for_clang tsan
  for_tsan build tsan -DDSMOE_BUILD_CLI=OFF core_tests io_tests ops_tests moe_tests infer_tests serve_tests
}

# The preset leaves MappedFile out: the sanitizer takes the new pages under a lost file for a write that races with the readers.
tsan() {
  local status=0
  built tsan || status=$?
  ahead multi
  [[ $status -eq 0 ]] && for_tsan tests tsan tsan
}

# The program and what only runs under mpirun; all else was tested without MPI.
build_multi() {
  ! command -v mpirun >/dev/null || build mpi dsmoe_cli multi_tests
}

multi() {
  local status=0
  built multi || status=$?
  ahead cuda
  if ! command -v mpirun >/dev/null; then
    note="skipped: there is no mpirun"
    return $status
  fi
  [[ $status -eq 0 ]] && tests mpi multi && tests mpi multi_slow
}

nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
# One architecture shows that it compiles, and the program that it links. The other tests are the release build's.
build_cuda() {
  [[ ! -x $nvcc ]] ||
    build cuda -DCMAKE_CUDA_COMPILER="$nvcc" -DDSMOE_CUDA_ARCHS=90a-real dsmoe_cli cuda_tests example_moe_layer_cuda
}

cuda() {
  built cuda || return
  if [[ ! -x $nvcc ]]; then
    note="skipped: there is no nvcc"
    return
  fi
  if ! nvidia-smi -L >/dev/null 2>&1; then
    tests cuda cuda -R '^CudaBuild' || return
    note="compiled; tests skipped: there is no GPU"
    return
  fi
  tests cuda cuda
}

# peers_installed: the packages of tests/peers/requirements.txt are in build/peers. 2 when nothing can be downloaded.
peers_installed() {
  local list=tests/peers/requirements.txt venv=build/peers
  cmp -s "$list" "$venv/installed" && return
  rm -rf "$venv"
  mkdir -p build
  logged build/peers.log python3 -m venv "$venv" || return 1
  if ! "$venv/bin/python" -m pip install --quiet --retries 1 --timeout 20 -r "$list" >build/peers.log 2>&1; then
    grep -q '(from versions: none)' build/peers.log && return 2  # what pip says when it reaches nobody
    tail -n 20 build/peers.log
    return 1
  fi
  cp "$list" "$venv/installed"
}

# The slow tests and the longest comparisons with peers, which are slow tests too, at the same time.
slow() {
  peers_status=0
  peers_installed || peers_status=$?
  local python=
  [[ $peers_status -eq 0 ]] && python=$PWD/build/peers/bin/python
  DSMOE_PYTHON=$python tests release slow
}

# The other comparisons, and the Python package, which is built for the interpreter that they run in. It is no part of the
# release build otherwise: that must configure without build/peers.
peers() {
  if [[ $peers_status -eq 2 ]]; then
    note="skipped: PyPI cannot be reached"
    return
  fi
  [[ $peers_status -eq 0 ]] || return
  local python=$PWD/build/peers/bin/python status=0
  build release -DDSMOE_PYTHON=ON -DPython_EXECUTABLE="$python" dsmoe_python dsmoe_python_stub || status=$?
  [[ $status -eq 0 ]] && { DSMOE_PYTHON=$python tests release peers -LE slow || status=$?; }
  logged build/release/configure.log cmake --preset release -DDSMOE_PYTHON=OFF || status=$?
  return $status
}

# step NAME: runs the function of that name and notes how it ended.
summary=
failed=false
step() {
  local began=$SECONDS result=passed
  note=
  printf '\n=== %s\n' "$1"
  if ! "$1"; then
    result=FAILED
    failed=true
  fi
  summary+=$(printf '%-8s %-7s %4d s%s' "$1" "$result" $((SECONDS - began)) "${note:+  $note}")$'\n'
}

packages=("${BUILD_PACKAGES[@]}")
$quick || packages+=("${TEST_PACKAGES[@]}")
ensure_packages "${packages[@]}"
step release
if ! $quick; then
  for name in asan fuzz tsan multi slow peers cuda; do step $name; done
fi

printf '\n=== summary\n%s' "$summary"
if $failed; then
  echo "FAILED"
  exit 1
fi
echo "All passed in $((SECONDS / 60)) min $((SECONDS % 60)) s."
