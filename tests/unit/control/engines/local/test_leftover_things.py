"""Leftovers between two censuses, and the command that removes each."""

import pytest

from clary.control.engines.local.leftover_things import Kind, Thing, left_behind


def process(pid, *, started="1", **fields):
    return Thing(kind=Kind.PROCESS, name=str(pid), identity=started, **fields)


def test_only_things_missing_in_the_first_census_are_leftovers():
    assert left_behind([process(1)], [process(1), process(2)]) == [process(2)]
    assert left_behind([process(1), process(2)], [process(2)]) == []


def test_another_process_with_the_same_id_is_new():
    assert left_behind([process(1, started="5")], [process(1, started="9")]) == [process(1, started="9")]


def test_a_process_that_has_become_a_zombie_is_new():
    zombie = Thing(kind=Kind.ZOMBIE, name="1", identity="1", holder=7)
    assert left_behind([process(1)], [zombie]) == [zombie]


def test_facts_about_the_owner_do_not_make_a_thing_new():
    assert left_behind([process(1)], [process(1, owner="job a", detail="sleep")]) == []


def test_a_legitimate_thing_is_no_leftover():
    found = left_behind([], [process(1, owner="job a"), process(2)], is_legitimate=lambda thing: bool(thing.owner))
    assert found == [process(2)]


def test_processes_are_listed_before_mounts_and_memory():
    mount, segment = Thing(kind=Kind.MOUNT, name="/m"), Thing(kind=Kind.SHARED_MEMORY, name="/dev/shm/s")
    assert left_behind([], [segment, mount, process(3)]) == [process(3), mount, segment]


@pytest.mark.parametrize(
    ("kind", "name", "command"),
    [
        (Kind.PROCESS, "12", "kill -9 12"),
        (Kind.ZOMBIE, "12", "kill 7"),
        (Kind.REGISTERED_NAMESPACE, "job-1", "ip netns delete job-1"),
        (Kind.HELD_NAMESPACE, "net:[4]", "kill -9 7"),
        (Kind.MOUNT, "/a b", "umount -l '/a b'"),
        (Kind.CGROUP, "/sys/fs/cgroup/clary/x", "rmdir /sys/fs/cgroup/clary/x"),
        (Kind.LINK, "br0", "ip link delete br0"),
        (Kind.SHARED_MEMORY, "/dev/shm/psm_1", "rm /dev/shm/psm_1"),
        (Kind.IPC_MEMORY, "3", "ipcrm -m 3"),
        (Kind.IPC_SEMAPHORES, "3", "ipcrm -s 3"),
        (Kind.IPC_QUEUE, "3", "ipcrm -q 3"),
        (Kind.SOCKET, "/tmp/x.sock", "rm /tmp/x.sock"),
        (Kind.FOLDER, "/jobs/$(x)", "rm -rf '/jobs/$(x)'"),
    ],
)
def test_every_kind_has_its_removal_command(kind, name, command):
    assert Thing(kind=kind, name=name, holder=7).removal == command


def test_no_kind_lacks_a_removal_command():
    assert all(Thing(kind=kind, name="1", holder=7).removal for kind in Kind)


def test_the_description_names_the_thing_its_owner_and_the_removal_command():
    thing = Thing(kind=Kind.SHARED_MEMORY, name="/dev/shm/a", owner="job x", detail="4096 bytes, user root")
    assert str(thing) == "shared memory /dev/shm/a (4096 bytes, user root) of job x; remove it: rm /dev/shm/a"
