"""The error of a rank whose DeepSpeed cannot compile its NVMe part: it names libaio, then quotes DeepSpeed."""

import ctypes
import errno
import os
import resource
import types

import pytest

from clary.train.trainers import deepspeed_nvme
from clary.train.trainers.deepspeed_nvme import mend_builder

DEEPSPEEDS_WORDS = (
    "Unable to JIT load the async_io op due to it not being compatible due to hardware/software issue. None"
)


def builder(name, *, compatible, loads=False):
    """A patched OpBuilder of DeepSpeed."""

    class OpBuilder:
        def __init__(self):
            self.name = name

        def is_compatible(self, verbose=False):
            return compatible

        def jit_load(self, verbose=True):
            if loads:
                return f"{name}, verbose={verbose}"
            raise RuntimeError(DEEPSPEEDS_WORDS)

    module = types.SimpleNamespace(OpBuilder=OpBuilder)
    mend_builder(module)
    return module.OpBuilder()


def failure_of(one):
    with pytest.raises(RuntimeError) as raised:
        one.jit_load(False)
    return raised.value


def test_a_missing_libaio_is_named_with_the_package_to_install(monkeypatch):
    monkeypatch.setenv("SM_CURRENT_HOST", "algo-2")
    monkeypatch.setenv("CC", "sh -x")  # any existing program
    error = failure_of(builder("async_io", compatible=False))
    assert str(error).startswith(
        "DeepSpeed on algo-2: offload to nvme needs libaio: libaio and its header are not there"
    )
    assert "apt-get install libaio-dev" in str(error)
    assert "CPATH, LIBRARY_PATH and LD_LIBRARY_PATH" in str(error)
    assert str(error).endswith("or offload to the cpu")
    assert str(error.__cause__) == DEEPSPEEDS_WORDS


def test_a_missing_compiler_is_named_instead(monkeypatch):
    monkeypatch.setenv("CC", "/nowhere/gcc")
    assert "there is no C compiler: `apt-get install g++ libaio-dev`" in str(
        failure_of(builder("async_io", compatible=False))
    )


@pytest.mark.parametrize(("name", "compatible"), [("async_io", True), ("cpu_adam", False)])
def test_other_failures_keep_the_message_of_deepspeed(name, compatible):
    assert str(failure_of(builder(name, compatible=compatible))) == DEEPSPEEDS_WORDS


def test_a_part_that_loads_is_returned_unchanged():
    assert builder("async_io", compatible=True, loads=True).jit_load(verbose=False) == "async_io, verbose=False"


def test_a_version_without_the_patched_method_is_not_changed():
    module = types.SimpleNamespace(OpBuilder=type("OpBuilder", (), {}))
    mend_builder(module)
    assert not hasattr(module.OpBuilder, "jit_load")


class Example:
    """Stands for a tensor of float32."""

    def __init__(self, address=0):
        self.address = address

    def element_size(self):
        return 4

    def data_ptr(self):
        return self.address


def loaded_handle():
    """Return a handle of DeepSpeed's NVMe part, as the patched builder loads it."""

    class AioHandle:
        def new_cpu_locked_tensor(self, count, example):
            return f"{count} locked"

        def async_pread(self, buffer, path, place):
            return f"{path} read to {place}"

    class OpBuilder:
        name = "async_io"

        def jit_load(self, verbose=True):
            return types.SimpleNamespace(aio_handle=AioHandle)

    mend_builder(types.SimpleNamespace(OpBuilder=OpBuilder))
    return OpBuilder().jit_load().aio_handle()


@pytest.fixture
def locking(monkeypatch, tmp_path):
    """Return a function that sets this process's limit on locked memory, with 4 KiB in use, and its capabilities."""
    status = tmp_path / "status"
    monkeypatch.setattr(deepspeed_nvme, "_STATUS", str(status))

    def limit(num_bytes, *, capabilities=0xA80425FB):  # the default capabilities under Docker
        status.write_text(f"Name:\tpython\nVmLck:\t       4 kB\nCapEff:\t{capabilities:016x}\n")
        monkeypatch.setattr(resource, "getrlimit", lambda which: (num_bytes, num_bytes))

    return limit


def test_a_buffer_beyond_the_lock_limit_is_refused_with_the_limit(locking, monkeypatch):
    monkeypatch.setenv("SM_CURRENT_HOST", "algo-1")
    locking(8192)
    with pytest.raises(RuntimeError) as raised:
        loaded_handle().new_cpu_locked_tensor(1025, Example())
    words = str(raised.value)
    assert words.startswith("DeepSpeed on algo-1: offload to nvme locks 4,100 bytes of buffers in memory; a process of")
    assert "may lock 8,192 bytes, and 4,096 bytes are locked already" in words
    assert "`ulimit -l` is unlimited" in words


@pytest.mark.parametrize(
    ("limit", "capabilities"),
    [(8192, 0), (resource.RLIM_INFINITY, 0), (4096, 1 << 14)],
    ids=["room", "no limit", "may"],
)
def test_a_buffer_within_the_lock_limit_is_locked(locking, limit, capabilities):
    locking(limit, capabilities=capabilities)
    assert loaded_handle().new_cpu_locked_tensor(1024, Example()) == "1024 locked"


@pytest.fixture
def disk(monkeypatch, tmp_path):
    """A file on a disk whose direct reads need addresses that are multiples of 512 bytes."""
    deepspeed_nvme._takes.cache_clear()
    path = tmp_path / "1_2_gradient.swp"
    path.write_bytes(bytes(8192))

    def preadv(file, buffers, offset):
        if ctypes.addressof(ctypes.c_char.from_buffer(buffers[0])) % 512:
            raise OSError(errno.EINVAL, "Invalid argument")
        return len(buffers[0])

    monkeypatch.setattr(deepspeed_nvme, "_PAST_THE_CACHE", 0)
    monkeypatch.setattr(os, "preadv", preadv)
    yield str(path)
    deepspeed_nvme._takes.cache_clear()


def test_a_read_to_an_address_that_the_disk_refuses_is_an_error_with_the_remedy(disk, monkeypatch):
    monkeypatch.setenv("SM_CURRENT_HOST", "algo-1")
    with pytest.raises(RuntimeError, match=r'disk refuses .* train on zeros .* "sub_group_size": 1') as raised:
        loaded_handle().async_pread(Example(4096 + 256), disk, 0)
    assert str(raised.value).startswith(f"DeepSpeed on algo-1: offload to nvme reads {disk} into a memory address")


def test_a_read_to_an_aligned_address_succeeds(disk):
    assert loaded_handle().async_pread(Example(4096 + 512), disk, 7) == f"{disk} read to 7"


def test_a_disk_that_reads_to_any_address_is_not_refused(disk, monkeypatch):
    monkeypatch.setattr(os, "preadv", lambda file, buffers, offset: len(buffers[0]))
    assert loaded_handle().async_pread(Example(4096 + 4), disk, 0) == f"{disk} read to 0"


def test_a_file_that_can_not_be_opened_is_left_to_deepspeed():
    assert loaded_handle().async_pread(Example(4), "/nowhere/1.swp", 0) == "/nowhere/1.swp read to 0"
