#!/bin/sh
# Build the collectives core into src/clary/train/_native, and the switch of the laboratory. Usage: build_native.sh BIN BUILD_FOLDER
set -eu
bin=$1
build=$2
if ! command -v "${CXX:-c++}" >/dev/null; then
    echo "no C++ compiler: collectives will run on the slow reference. To have the fast core: sudo apt-get install g++" >&2
    exit 0
fi
here=$(cd "$(dirname "$0")/.." && pwd)
PATH="$here/$bin:$PATH"
unset MAKEFLAGS MFLAGS  # ninja would look for make's own workers there
cmake -S "$here" -B "$here/$build" -G Ninja "-DPython_EXECUTABLE=$here/$bin/python" >/dev/null
cmake --build "$here/$build" --target all clary_switch
# A process that has the old library loaded keeps it; the new one takes its place in one step.
for built in libclary_collectives.so _door.abi3.so; do
    [ -e "$here/$build/$built" ] || continue
    cp "$here/$build/$built" "$here/src/clary/train/_native/.$built.new"
    mv "$here/src/clary/train/_native/.$built.new" "$here/src/clary/train/_native/$built"
done
