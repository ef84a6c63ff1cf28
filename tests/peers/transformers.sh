#!/bin/sh
# transformers.sh SCRIPT ARGUMENTS...: as python.sh, with an interpreter of its own, which DSMOE_TRANSFORMERS_PYTHON names:
# PyTorch and transformers are gigabytes, and not in requirements.txt.
DSMOE_PYTHON=$DSMOE_TRANSFORMERS_PYTHON exec "$(dirname "$0")/python.sh" "$@"
