"""Records that ranks publish, and conclusions: hosts by first appearance, and ranks that do not fit together."""

import json
from dataclasses import replace

import pytest

from clary.train._native.errors import BootstrapError
from clary.train.collective.bootstrap.records import (
    MAX_RECORD_BYTES,
    RankRecord,
    Root,
    Terms,
    check_agreement,
    decode,
    encode,
    layout_of,
)

TERMS = Terms(size=4, core="native", slot_bytes=4096, link_latency_s=0.0, link_bytes_per_s=1e9, algorithm="")


def record(rank, identity="a", **changes):
    base = RankRecord(rank, identity, f"host-{identity}", 7, "10.0.0.1", 1234, "name", "first", TERMS)
    return replace(base, **changes)


def test_a_record_comes_back_as_it_was_stored():
    assert decode(RankRecord, encode(record(2)), key="k") == record(2)
    assert decode(Root, encode(Root("g", "s")), key="k") == Root("g", "s")


def test_hosts_are_numbered_in_order_of_first_appearance_by_rank():
    layout = layout_of([record(0, "b"), record(1, "a"), record(2, "b"), record(3, "c")])
    assert layout.host_of_rank == (0, 1, 0, 2)
    assert layout.host_names == ("host-b", "host-a", "host-c")
    assert layout.ranks_of(0) == (0, 2)
    assert layout.describe(3) == "rank 3 on host-c"


def test_ranks_that_agree_are_accepted():
    check_agreement("g", {rank: record(rank) for rank in range(4)}, "first")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"core": "reference"}, "differ in core: 'reference' on rank 2"),
        ({"slot_bytes": 8192}, "differ in slot_bytes: 8192 on rank 2 .*CLARY_COLLECTIVE_SLOT_BYTES"),
        ({"link_bytes_per_s": 5.0}, "differ in link_bytes_per_s: 5.0 on rank 2 .*CLARY_COLLECTIVE_LINK"),
        ({"algorithm": "ring"}, "differ in algorithm: 'ring' on rank 2 .*CLARY_COLLECTIVE_ALGORITHM"),
        ({"size": 3}, "differ in size: 3 on rank 2"),
        ({"version": 9}, "differ in version: 9 on rank 2"),
    ],
)
def test_ranks_that_were_set_up_differently_are_named_with_both_values(changes, words):
    records = {rank: record(rank) for rank in range(4)}
    records[2] = record(2, terms=replace(TERMS, **changes))
    with pytest.raises(BootstrapError, match=words) as failure:
        check_agreement("g", records, "first")
    assert failure.value.culprit == 2
    assert not failure.value.retryable


def test_a_record_of_an_earlier_attempt_is_noticed():
    with pytest.raises(BootstrapError, match=r"record of rank 1 .* belongs to another attempt"):
        check_agreement("g", {0: record(0), 1: record(1, generation="older")}, "first")


def test_a_rank_that_gave_up_is_quoted():
    with pytest.raises(BootstrapError, match=r"rank 2 on host-a .* gave up: no library") as failure:
        check_agreement("g", {0: record(0), 2: record(2, farewell="no library")}, "first")
    assert failure.value.culprit == 2


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"\xff\xfe",
        b"[]",
        b"{}",
        b"[" * MAX_RECORD_BYTES,
        b"x" * (MAX_RECORD_BYTES + 1),
        json.dumps({"generation": 5, "secret": ""}).encode(),
    ],
)
def test_what_is_no_record_is_refused_with_its_key(value):
    with pytest.raises(BootstrapError, match="key 'world/root' of the store holds"):
        decode(Root, value, key="world/root")
