#!/bin/sh
# Check Clary on a machine with a GPU. Installs nothing and needs no network: Python 3.11 or newer with torch, and a C++
# compiler. Usage: check_gpu.sh [OUT] [--cuda-on-cpu] [--only WORD]; PYTHON names another interpreter. See docs/numbers/gpu.md.
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
for python in "${PYTHON:-python3}" python3.13 python3.12 python3.11; do
    if command -v "$python" >/dev/null && "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
        exec env PYTHONPATH="$here${PYTHONPATH:+:$PYTHONPATH}" "$python" -m tools.gpu_checks "$@"
    fi
done
echo "check_gpu.sh: no Python 3.11 or newer: set PYTHON to one that has torch" >&2
exit 2
