"""Memory that ranks of a host share: its size, its seals, and files that are not taken for it."""

import os

import pytest

from clary.train._native import core
from clary.train._native.errors import BootstrapError
from clary.train.collective.bootstrap.segment import check_segment, create_segment, segment_bytes

MIB = 1 << 20


@pytest.fixture
def segment():
    descriptor = create_segment(2 * MIB)
    yield descriptor
    os.close(descriptor)


def test_the_size_holds_three_slots_a_rank_in_whole_large_pages():
    assert segment_bytes(1, 4096) == 2 * MIB
    assert segment_bytes(4, MIB) == 14 * MIB
    assert segment_bytes(32, MIB) >= 65536 + 32 * (4096 + 3 * MIB)


def test_the_compiled_core_computes_the_same_size():
    if not core.is_available():
        pytest.skip(core.unavailable_reason())
    for ranks in (1, 2, 3, 8, 64, 500):
        for slot_bytes in (4096, 12288, MIB, 64 * MIB):
            assert core.segment_bytes(ranks, slot_bytes) == segment_bytes(ranks, slot_bytes)


def test_a_new_segment_is_zeroed_sealed_and_not_inherited(segment):
    assert os.pread(segment, 4096, MIB) == bytes(4096)
    assert not os.get_inheritable(segment)
    with pytest.raises(PermissionError):
        os.ftruncate(segment, MIB)
    check_segment(segment, 2 * MIB, leader=0)


def test_memory_of_another_size_is_refused(segment):
    with pytest.raises(BootstrapError, match=f"rank 5 handed over {2 * MIB} bytes .* expected {4 * MIB}") as failure:
        check_segment(segment, 4 * MIB, leader=5)
    assert failure.value.culprit == 5


def test_memory_that_could_be_shrunk_is_refused():
    descriptor = os.memfd_create("open", os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, 4096)
        with pytest.raises(BootstrapError, match="sealed against shrinking"):
            check_segment(descriptor, 4096, leader=0)
    finally:
        os.close(descriptor)


def test_a_file_is_refused(tmp_path):
    with (tmp_path / "file").open("wb") as file:
        file.truncate(4096)
        with pytest.raises(BootstrapError, match="rank 1 handed over no shared memory"):
            check_segment(file.fileno(), 4096, leader=1)
