#!/bin/sh
# Build and run native/tests. Usage: test_native.sh BIN SANITIZER...   ("none" is the plain build, "sample" one of the
# sanitizers, chosen by CLARY_TEST_SEED or, without it, by the time)
set -eu
bin=$1
shift
here=$(cd "$(dirname "$0")/.." && pwd)
PATH="$here/$bin:$PATH"
if ! command -v "${CXX:-c++}" >/dev/null || ! [ -e /usr/include/gtest/gtest.h ]; then
    echo "SKIPPED native tests: they need a C++ compiler and GoogleTest (apt-get install g++ libgtest-dev)" >&2
    [ "${CI:-}" != true ] || { echo "In CI everything that tests need has to be there." >&2; exit 1; }
    exit 0
fi
run_tests() {
    rounds=$1
    build=$2
    shift 2
    CLARY_KILL_ROUNDS="${CLARY_KILL_ROUNDS:-$rounds}" ctest --test-dir "$build" --parallel 3 --output-on-failure "$@"
}
for sanitizer in "$@"; do
    if [ "$sanitizer" = sample ]; then
        # By its last digit, and not by arithmetic: a shell takes 08 for octal, and stops.
        case "${CLARY_TEST_SEED:-$(date +%s)}" in *[13579]) sanitizer=thread ;; *) sanitizer=address,undefined ;; esac
        echo "native tests: this run has one sanitizer, $sanitizer; make test-all has both"
    fi
    # The plain build goes on in the library's own folder (tools/build_native.sh), where the core is compiled already.
    [ "$sanitizer" = none ] && build="$here/build/native" || build="$here/build/native-test-$sanitizer"
    [ "$sanitizer" = none ] && flag="" || flag=$sanitizer
    echo "native tests, sanitizer: $sanitizer"
    cmake -S "$here" -B "$build" -G Ninja -DCLARY_TESTS=ON "-DCLARY_SANITIZE=$flag" \
        "-DPython_EXECUTABLE=$here/$bin/python" >/dev/null
    cmake --build "$build" --target clary_tests
    # Sanitizers make processes slow to start: fewer of them are killed there.
    [ "$sanitizer" = none ] && rounds=60 || rounds=10
    # As with the other tests (tools/run_tests.py): what failed runs once more, alone, and has to pass three times.
    run_tests "$rounds" "$build" || {
        echo "native tests: those that failed run again, and have to pass three times"
        run_tests "$rounds" "$build" --rerun-failed --repeat until-fail:3 --parallel 1
    }
done
