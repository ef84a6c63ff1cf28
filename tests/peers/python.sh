#!/bin/sh
# python.sh SCRIPT ARGUMENTS...: runs a comparison with the interpreter that DSMOE_PYTHON names, else with python3.
# Exit status 77 (skipped) where python3 or the script's packages are missing. An interpreter that was named must have
# them: then that is a failure.
python=${DSMOE_PYTHON:-python3}
command -v "$python" >/dev/null || { echo "there is no $python"; exit $((${#DSMOE_PYTHON} > 0 ? 1 : 77)); }
"$python" "$@"
status=$?
[ $status -eq 77 ] && [ -n "$DSMOE_PYTHON" ] && status=1
exit $status
