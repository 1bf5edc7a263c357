"""Forming groups: ranks on one host, missing, late or misconfigured ranks, and no open descriptors afterwards."""

import fcntl
import os
import socket
import threading
import time
from dataclasses import replace

import pytest
from collective_groups import FAST, MemoryStore, open_descriptors, run_group, run_ranks

from clary.train._native.errors import BootstrapError, CoreError
from clary.train.collective.bootstrap.group import connect_group
from clary.train.collective.bootstrap.segment import segment_bytes


def connect(store, rank, size, settings=FAST, name="g"):
    return connect_group(store, rank=rank, size=size, group_name=name, settings=settings)


def descriptors_of(connections):
    return [fd for fd in (connections.segment_fd, *connections.lane_fds, *connections.side_fds) if fd >= 0]


def close(connections):
    for descriptor in descriptors_of(connections):
        os.close(descriptor)


def on_host(host, **changes):
    return replace(FAST, host=host, **changes)


def test_a_group_of_one_needs_no_store():
    connections = connect(None, 0, 1)
    assert (connections.host_of_rank, connections.side_fds, connections.segment_fd) == ((0,), (-1,), -1)


def test_all_ranks_get_side_streams_those_of_a_host_memory_and_others_lanes():
    store, size = MemoryStore(), 4
    hosts = ("b", "a", "b", "a")
    groups = run_ranks(size, lambda rank: connect(store, rank, size, on_host(hosts[rank])))
    try:
        for rank, group in enumerate(groups):
            assert group.host_of_rank == (0, 1, 0, 1)
            assert group.host_names == ("b", "a")
            assert [peer for peer, fd in enumerate(group.side_fds) if fd >= 0] == [p for p in range(4) if p != rank]
            assert [peer for peer, fd in enumerate(group.lane_fds) if fd >= 0] == [1 - rank % 2, 3 - rank % 2]
            assert group.segment_bytes == segment_bytes(2, FAST.slot_bytes) == os.fstat(group.segment_fd).st_size
            assert fcntl.fcntl(group.segment_fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK
            assert all(not os.get_inheritable(descriptor) for descriptor in descriptors_of(group))
        os.pwrite(groups[0].segment_fd, b"shared", 100)
        assert os.pread(groups[2].segment_fd, 6, 100) == b"shared"
        assert os.pread(groups[1].segment_fd, 6, 100) == bytes(6)
        families = {peer: socket.socket(fileno=os.dup(fd)) for peer, fd in enumerate(groups[0].side_fds) if fd >= 0}
        assert {peer: sock.family for peer, sock in families.items()} == {
            1: socket.AF_INET,
            2: socket.AF_UNIX,
            3: socket.AF_INET,
        }
        for sock in families.values():
            sock.close()
    finally:
        for group in groups:
            close(group)


def test_each_socket_connects_to_the_rank_of_its_index():
    store, size = MemoryStore(), 3
    groups = run_ranks(size, lambda rank: connect(store, rank, size, on_host(f"h{rank}")))
    try:
        for kind in ("lane_fds", "side_fds"):
            for rank in range(size):
                for peer in range(size):
                    if peer != rank:
                        os.write(getattr(groups[rank], kind)[peer], b"%c%c" % (rank, peer))
            for rank in range(size):
                for peer in range(size):
                    if peer != rank:
                        assert os.read(getattr(groups[rank], kind)[peer], 9) == b"%c%c" % (peer, rank)
    finally:
        for group in groups:
            close(group)


def congestion_of(descriptor):
    with socket.socket(fileno=os.dup(descriptor)) as sock:
        return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0")


def test_connections_between_hosts_have_the_congestion_control_that_was_set():
    store, size = MemoryStore(), 3
    groups = run_ranks(size, lambda rank: connect(store, rank, size, replace(on_host(f"h{rank}"), congestion="reno")))
    try:
        descriptors = [fd for group in groups for fd in (*group.lane_fds, *group.side_fds) if fd >= 0]
        assert len(descriptors) == 12
        assert {congestion_of(descriptor) for descriptor in descriptors} == {b"reno"}
    finally:
        for group in groups:
            close(group)


def test_a_congestion_control_that_the_kernel_lacks_is_refused_with_those_that_it_has():
    before = open_descriptors()
    with pytest.raises(BootstrapError) as refusal:
        connect(MemoryStore(), 0, 2, replace(on_host("h"), congestion="no_such_one"))
    assert "CLARY_COLLECTIVE_CONGESTION is 'no_such_one', which the kernel refuses" in str(refusal.value)
    assert "reno" in str(refusal.value)
    assert open_descriptors() == before


def test_bootstrap_leaves_no_key_in_the_store_and_no_open_descriptor():
    store = MemoryStore()
    before = open_descriptors()
    for name in ("one", "two"):
        for group in run_ranks(3, lambda rank, name=name: connect(store, rank, 3, on_host(f"h{rank // 2}"), name)):
            close(group)
    assert store.values == {}
    assert open_descriptors().keys() == before.keys()


def test_a_late_rank_is_waited_for():
    store = MemoryStore()

    def come(rank):
        time.sleep(0.5 if rank == 0 else 0.0)
        return connect(store, rank, 2)

    for group in run_ranks(2, come):
        close(group)


def test_missing_ranks_are_named_with_the_present_ones():
    store = MemoryStore()
    before = open_descriptors()
    settings = replace(FAST, connect_timeout_s=0.5, sagemaker_host="algo-1")
    start_s = time.monotonic()
    outcomes = run_ranks(2, lambda rank: connect(store, rank, 4, settings))
    assert time.monotonic() - start_s < 3
    for rank, outcome in enumerate(outcomes):
        assert isinstance(outcome, BootstrapError)
        assert outcome.culprit == 2
        assert "group 'g' was not formed after 0." in str(outcome)
        assert "2 of 4 ranks did not come: 2, 3. Came: rank 0 on algo-1 (127.0.0.1 port" in str(outcome)
        assert f"This is rank {rank} on algo-1" in str(outcome)
        assert "CLARY_COLLECTIVE_CONNECT_TIMEOUT_S" in str(outcome)
    assert open_descriptors().keys() == before.keys()


def test_a_missing_rank_zero_is_named():
    (outcome,) = run_ranks(1, lambda _: connect(MemoryStore(), 1, 2, replace(FAST, connect_timeout_s=0.2)))
    assert outcome.culprit == 0
    assert "1 of 2 ranks did not come: 0." in str(outcome)


def test_a_rank_that_dies_after_publishing_is_found_long_before_the_timeout(monkeypatch):
    monkeypatch.setattr("clary.train.collective.bootstrap.meeting.GONE_LIMIT_S", 0.3)
    store = MemoryStore()
    told = threading.Event()

    def come(rank):
        if rank == 0:  # publishes, then fails before it accepts a connection
            monkeypatch.setattr(store, "get", dying_get)
        return connect(store, rank, 2)

    real_get = store.get

    def dying_get(key, timeout_s):
        if threading.current_thread().name == "rank-0" and key == "g/1":
            real_get(key, timeout_s)
            told.set()
            raise OSError("this rank dies here")
        if key == "g/1":
            told.wait(5)
        return real_get(key, timeout_s)

    def named(rank):
        threading.current_thread().name = f"rank-{rank}"
        return come(rank)

    start_s = time.monotonic()
    first, second = run_ranks(2, named)
    assert "its store failed: this rank dies here" in str(first)
    assert isinstance(second, BootstrapError)
    assert second.culprit == 0
    assert time.monotonic() - start_s < 5


def test_a_rank_that_fails_reports_it_to_connected_ranks(monkeypatch):
    from clary.train.collective.bootstrap import group

    store = MemoryStore()
    real = group.create_segment

    def refuse(num_bytes):
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(group, "create_segment", refuse)
    start_s = time.monotonic()
    outcomes = run_ranks(3, lambda rank: connect(store, rank, 3))
    monkeypatch.setattr(group, "create_segment", real)
    assert time.monotonic() - start_s < 5
    assert all(isinstance(outcome, BootstrapError) for outcome in outcomes)
    assert "rank 0 cannot make 2097152 bytes of shared memory: Cannot allocate memory" in str(outcomes[0])
    for outcome in outcomes[1:]:
        assert "gave up" in str(outcome)
        assert "Cannot allocate memory" in str(outcome)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"slot_bytes": 8192}, "ranks differ in slot_bytes: 8192 on rank 1"),
        ({"core": "native"}, "ranks differ in core"),
        ({"algorithm": "ring"}, "ranks differ in algorithm: 'ring' on rank 1"),
    ],
)
def test_ranks_with_different_settings_are_refused_by_all(changes, words, monkeypatch):
    from clary.train.collective.bootstrap import group

    monkeypatch.setattr(group, "core_kind", lambda settings: settings.core)
    store = MemoryStore()
    outcomes = run_ranks(3, lambda rank: connect(store, rank, 3, replace(FAST, **changes) if rank == 1 else FAST))
    assert all(isinstance(outcome, BootstrapError) and words in str(outcome) for outcome in outcomes), outcomes


def test_a_different_world_size_on_a_rank_is_named():
    store = MemoryStore()
    start_s = time.monotonic()
    for outcome in run_ranks(2, lambda rank: connect(store, rank, 2 + rank)):
        assert "ranks differ in size: 3 on rank 1" in str(outcome)
    assert time.monotonic() - start_s < 5


def test_a_wrong_secret_is_reported_at_once_on_both_ranks():
    store = MemoryStore()
    settings = [
        replace(FAST, secret="right", connect_timeout_s=1.5),
        replace(FAST, secret="wrong", connect_timeout_s=30.0),
    ]
    first, second = run_ranks(2, lambda rank: connect(store, rank, 2, settings[rank]))
    assert isinstance(second, BootstrapError)
    assert not second.retryable
    assert "rank 0 did not take the proof of rank 1" in str(second)
    assert "CLARY_COLLECTIVE_SECRET" in str(second)
    assert isinstance(first, BootstrapError)
    assert "did not connect to this rank: rank 1" in str(first)
    assert "Refused meanwhile: 1 x a process of this host (wrong secret, group or attempt" in str(first)


@pytest.mark.parametrize("holder", [0, 1])
def test_a_secret_on_only_some_ranks_is_reported(holder):
    store = MemoryStore()
    start_s = time.monotonic()
    outcomes = run_ranks(2, lambda rank: connect(store, rank, 2, replace(FAST, secret="x") if rank == holder else FAST))
    words = f"rank {holder} has CLARY_COLLECTIVE_SECRET, rank {1 - holder} has not"
    assert words in str(outcomes[1])
    assert "gave up: BootstrapError: group 'g'" in str(outcomes[0])
    assert words in str(outcomes[0])
    assert time.monotonic() - start_s < 5


def test_a_core_missing_on_one_rank_ends_the_bootstrap_on_all(monkeypatch):
    from clary.train.collective.bootstrap import group

    def core_kind(settings):
        if settings.core == "native":
            raise CoreError("no library here")
        return settings.core

    monkeypatch.setattr(group, "core_kind", core_kind)
    store = MemoryStore()
    outcomes = run_ranks(2, lambda rank: connect(store, rank, 2, replace(FAST, core="native") if rank == 1 else FAST))
    assert isinstance(outcomes[1], CoreError)
    assert "gave up: CoreError: no library here" in str(outcomes[0])


def test_a_secret_of_the_job_never_reaches_the_store():
    seen = {}

    class Watched(MemoryStore):
        def set(self, key, value):
            seen[key] = value
            super().set(key, value)

    store = Watched()
    for group in run_ranks(2, lambda rank: connect(store, rank, 2, replace(FAST, secret="of the job"))):
        close(group)
    assert set(seen) == {"g/root", "g/0", "g/1"}
    assert not any(b"of the job" in value for value in seen.values())


def test_records_of_an_earlier_attempt_are_detected():
    store = MemoryStore()
    kept = {}

    class Keeping(MemoryStore):
        def delete(self, key):
            kept[key] = self.values[key]

    earlier = Keeping()
    for group in run_ranks(2, lambda rank: connect(earlier, rank, 2)):
        close(group)
    store.values["g/1"] = kept["g/1"]
    (outcome,) = run_ranks(1, lambda _: connect(store, 0, 2))
    assert "the record of rank 1" in str(outcome)
    assert "belongs to another attempt: give every attempt a group name" in str(outcome)


def test_without_shared_memory_ranks_of_a_machine_connect_by_tcp(monkeypatch):
    from clary.train.collective.bootstrap import hosts, listeners

    monkeypatch.setattr(hosts, "HAS_SHARED_MEMORY", False)
    monkeypatch.setattr(listeners, "HAS_SHARED_MEMORY", False)
    assert run_group(2, lambda group: group.core.counters()["operations"] + group.size) == [2, 2]


def test_thirty_two_ranks_on_two_hosts_form_a_group():
    before = open_descriptors()

    def act(group):
        memory = bytearray(b"\x01")
        group.all_reduce(memory)
        return memory[0]

    assert run_group(32, act, num_hosts=2) == [32] * 32
    assert open_descriptors().keys() == before.keys()


@pytest.mark.parametrize(
    ("rank", "size", "name"), [(2, 2, "g"), (-1, 2, "g"), (0, 0, "g"), (0, 2, ""), (0, 2, "x" * 501)]
)
def test_an_impossible_rank_or_size_is_a_bad_argument(rank, size, name):
    with pytest.raises(ValueError, match=r"rank|name"):
        connect(MemoryStore(), rank, size, FAST, name)


def test_several_ranks_without_a_store_are_a_bad_argument():
    with pytest.raises(ValueError, match="needs a store"):
        connect(None, 0, 2)
