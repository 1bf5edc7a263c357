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
cmake -S "$here" -B "$here/$build" -G Ninja >/dev/null
cmake --build "$here/$build" --target clary_collectives clary_switch
# A process that has the old library loaded keeps it; the new one takes its place in one step.
cp "$here/$build/libclary_collectives.so" "$here/src/clary/train/_native/.libclary_collectives.so.new"
mv "$here/src/clary/train/_native/.libclary_collectives.so.new" "$here/src/clary/train/_native/libclary_collectives.so"
