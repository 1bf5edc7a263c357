#!/bin/sh
# Build and run native/tests. Usage: test_native.sh BIN SANITIZER...   ("none" is the plain build)
set -eu
bin=$1
shift
here=$(cd "$(dirname "$0")/.." && pwd)
PATH="$here/$bin:$PATH"
if ! command -v "${CXX:-c++}" >/dev/null || ! [ -e /usr/include/gtest/gtest.h ]; then
    echo "SKIPPED native tests: they need a C++ compiler and GoogleTest (apt-get install g++ libgtest-dev)" >&2
    exit 0
fi
for sanitizer in "$@"; do
    build="$here/build/native-test-$sanitizer"
    [ "$sanitizer" = none ] && flag="" || flag=$sanitizer
    # Processes start slowly with a sanitizer; the plain build kills more of them.
    [ "$sanitizer" = none ] || export CLARY_KILL_ROUNDS="${CLARY_KILL_ROUNDS:-10}"
    echo "native tests, sanitizer: $sanitizer"
    cmake -S "$here" -B "$build" -G Ninja -DCLARY_TESTS=ON "-DCLARY_SANITIZE=$flag" >/dev/null
    cmake --build "$build"
    ctest --test-dir "$build" --output-on-failure
done
