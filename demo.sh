#!/usr/bin/env bash
# Sets up and builds the program on a bare Debian 12 or Ubuntu 24.04 machine, then shows what it does. Needs no GPU.
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
show info
show plan --preset deepseek-moe-16b
show plan -N 16 -K 2 -m 4 -s 1
# Half the widths of deepseek-moe-16b's layer: some seconds, and little memory.
show bench layer --tokens 1,256 --hidden-size 1024 --expert-size 704 --backward
