"""Sizes of the disks that hosts of a rehearsal get for themselves."""

import pytest

from clary.base.errors import ContractError
from clary.control.rehearsal.disks import check_disks, disk_hosts, in_words, parse_size
from clary.control.rehearsal.faults import FaultKind, parse_fault

GIB = 1 << 30


@pytest.mark.parametrize(
    ("text", "size_bytes", "words"),
    [
        ("2GiB", 2 * GIB, "2 GiB"),
        ("500MiB", 500 << 20, "500 MiB"),
        ("1.5 GiB", GIB + GIB // 2, "1.5 GiB"),
        (" 16MiB ", 16 << 20, "16 MiB"),
    ],
)
def test_sizes_are_parsed_and_formatted(text, size_bytes, words):
    assert parse_size(text) == size_bytes
    assert in_words(size_bytes) == words


@pytest.mark.parametrize("text", ["", "2", "2GB", "-2GiB", "2gib", "15MiB", "0GiB", "1e3MiB"])
def test_sizes_that_are_invalid_or_too_small_are_refused(text):
    with pytest.raises(ContractError, match="--disk-size: expected 2GiB or 500MiB, at least 16 MiB, got"):
        parse_size(text)


def test_each_host_whose_disk_is_filled_gets_one_disk():
    faults = [
        parse_fault(FaultKind.DISK_FULL, "algo-2@1s"),
        parse_fault(FaultKind.KILL, "algo-3@1s"),
        parse_fault(FaultKind.DISK_FULL, "algo-1@9s"),
        parse_fault(FaultKind.DISK_FULL, "algo-2@9s"),
    ]
    assert disk_hosts(faults) == ("algo-1", "algo-2")
    assert disk_hosts(faults[1:2]) == ()


def test_all_disks_that_exist_at_once_have_to_fit():
    hosts = ("algo-1", "algo-2")
    check_disks(hosts, size_bytes=GIB, num_jobs=1, largest_bytes=2 * GIB)
    with pytest.raises(
        ContractError, match=r"4 disks of 1 GiB would take more than half .* all disks together may take at most 2 GiB"
    ):
        check_disks(hosts, size_bytes=GIB, num_jobs=2, largest_bytes=2 * GIB)
    with pytest.raises(ContractError, match="1 disk of 2 GiB would"):
        check_disks(hosts[:1], size_bytes=2 * GIB, num_jobs=1, largest_bytes=GIB)
    check_disks((), size_bytes=GIB, num_jobs=2, largest_bytes=0)
