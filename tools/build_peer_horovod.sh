#!/bin/sh
# Build the real Horovod, for comparison in benchmarks alone. Usage: build_peer_horovod.sh ENVIRONMENT TRAIN_ENVIRONMENT
# Its build asks for C++14 where torch's headers need C++17: a wrapper of the compiler answers for it. Two minutes.
set -eu
environment=$1
train=$2
wrapper=$(mktemp -d)
trap 'rm -rf "$wrapper"' EXIT
cat > "$wrapper/cxx17" <<'WRAPPER'
#!/bin/sh
for word; do
    shift
    case $word in -std=c++14 | -std=gnu++14) word=-std=c++17 ;; esac
    set -- "$@" "$word"
done
exec g++ "$@"
WRAPPER
chmod +x "$wrapper/cxx17"
echo "$(cd "$train" && pwd)/$(cd "$train" && ls -d lib/python3*/site-packages)" > "$(ls -d "$environment"/lib/python3*/site-packages)/train.pth"
"$environment/bin/pip" install --quiet --disable-pip-version-check \
    "setuptools<80" wheel packaging psutil pyyaml cloudpickle cffi cmake==3.27.9
PATH="$(cd "$environment" && pwd)/bin:$PATH" CXX="$wrapper/cxx17" MAKEFLAGS= \
    HOROVOD_WITH_PYTORCH=1 HOROVOD_WITHOUT_MPI=1 HOROVOD_WITHOUT_TENSORFLOW=1 HOROVOD_WITHOUT_MXNET=1 \
    HOROVOD_WITH_GLOO=1 HOROVOD_CPU_OPERATIONS=GLOO \
    "$environment/bin/pip" install --quiet --disable-pip-version-check --no-build-isolation --no-deps horovod==0.28.1
