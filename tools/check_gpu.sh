#!/bin/sh
# Check Clary on a machine with a GPU. Installs nothing and needs no network: Python 3.11 or newer with torch, and a C++
# compiler. Usage: check_gpu.sh [OUT] [--cuda-on-cpu] [--only WORD]; PYTHON names the interpreter. See docs/numbers/gpu.md.
# Else that one of PATH is taken which has torch with CUDA, next one with torch, next any. Nothing is imported for that.
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
look='
import importlib.util, pathlib, sys
if sys.version_info < (3, 11):
    sys.exit("too old")
found = importlib.util.find_spec("torch")
place = pathlib.Path(found.origin).parent / "version.py" if found and found.origin else None
lines = place.read_text().splitlines() if place and place.is_file() else []
has_cuda = any(line.startswith("cuda") and not line.endswith("None") for line in lines)
print("cuda" if has_cuda else "torch" if found else "bare")
'
kind_of() {
    command -v "$1" >/dev/null && "$1" -c "$look" 2>/dev/null || true
}
with_cuda='' with_torch='' bare=''
for python in python3 python python3.14 python3.13 python3.12 python3.11; do
    python=${PYTHON:-$python}
    case $(kind_of "$python") in
        cuda) with_cuda=$python && break ;;
        torch) with_torch=${with_torch:-$python} ;;
        bare) bare=${bare:-$python} ;;
    esac
    [ -z "${PYTHON:-}" ] || break
done
chosen=${with_cuda:-${with_torch:-$bare}}
if [ -z "$chosen" ]; then
    echo "check_gpu.sh: no Python 3.11 or newer: set PYTHON to one that has torch" >&2
    exit 2
fi
exec env PYTHONPATH="$here${PYTHONPATH:+:$PYTHONPATH}" "$chosen" -m tools.gpu_checks "$@"
