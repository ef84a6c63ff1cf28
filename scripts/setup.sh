# Sourced by demo.sh and test.sh: installs what is missing, then configures and builds with the presets.
# Everything comes from the packages of Debian 12 and Ubuntu 24.04, under names that both have.
# shellcheck shell=bash disable=SC2034

readonly BUILD_PACKAGES=(
  g++ cmake ninja-build ccache pkg-config                              # the build
  libfmt-dev nlohmann-json3-dev libcli11-dev libpcre2-dev libutf8proc-dev libedit-dev libboost-dev libssl-dev  # the library and the program
  libgtest-dev libgmock-dev                                            # the tests
)
TEST_PACKAGES=(
  clang libclang-rt-dev lld clang-format  # the sanitizers and libFuzzer; the check of the format
  python3-venv python3-dev                # the step peers; the headers are for the Python package
  libopenmpi-dev openmpi-bin              # the step multi
)
# The reports in a browser. Ubuntu's is a snap, which needs more than a package; there the test is skipped.
grep -qs '^ID=debian' /etc/os-release && TEST_PACKAGES+=(chromium)
readonly TEST_PACKAGES

die() {
  printf '%s: %s\n' "${0##*/}" "$*" >&2
  exit 1
}

# ensure_packages NAME...: says what it will install and installs it. When nothing is missing this is one dpkg query.
ensure_packages() {
  local present package missing=() as_root=()
  if ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null; then
    echo "No apt here, so nothing is installed. The build needs what Debian calls: $*"
    return
  fi
  present=$(dpkg-query -W -f '${Package} ${db:Status-Status}\n' "$@" 2>/dev/null || true)
  for package in "$@"; do
    grep -qxF "$package installed" <<<"$present" || missing+=("$package")
  done
  [[ ${#missing[@]} -eq 0 ]] && return

  echo "Installing with apt-get: ${missing[*]}"
  if [[ $EUID -ne 0 ]]; then
    command -v sudo >/dev/null || die "installing packages needs root or sudo; as root: apt-get install ${missing[*]}"
    as_root=(sudo)
    [[ -t 0 ]] || as_root=(sudo -n)  # nobody can type a password
  fi
  local log
  log=$(mktemp)
  apt() { "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 "$@" </dev/null >>"$log" 2>&1; }
  if ! apt update || ! apt install -y --no-install-recommends "${missing[@]}"; then
    grep -E '^(E:|sudo:)' "$log" | tail -5 >&2
    die "apt-get could not install ${missing[*]}; is the network up? (full log: $log)"
  fi
  rm -f "$log"
}

# logged LOG COMMAND...: runs it into LOG, whose end is shown when it fails.
logged() {
  local log=$1 status=0
  "${@:2}" >"$log" 2>&1 || status=$?
  [[ $status -eq 0 ]] || tail -n 80 "$log"
  return $status
}

# build PRESET [-DOPTION=VALUE...] [TARGET...]: configures and builds build/PRESET, under the command in RUN if any.
RUN=()
build() {
  local preset=$1 options=() targets=() argument
  for argument in "${@:2}"; do
    if [[ $argument == -D* ]]; then options+=("$argument"); else targets+=("$argument"); fi
  done
  mkdir -p "build/$preset"
  logged "build/$preset/configure.log" cmake --preset "$preset" "${options[@]}" || return
  [[ ${#targets[@]} -gt 0 ]] && targets=(--target "${targets[@]}")
  local compile=("${RUN[@]}" cmake --build --preset "$preset" --parallel "$(nproc)" "${targets[@]}")
  if [[ -t 1 ]]; then "${compile[@]}"; else logged "build/$preset/build.log" "${compile[@]}"; fi
}
