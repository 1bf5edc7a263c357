"""Lists of checkpoint sets: whole, incomplete, damaged and unread sets, and changes during the listing."""

import asyncio
from datetime import timedelta

import pytest
from checkpoint_bucket import PLACE, TAKEN, FakeBucket, FakeStream, aside, commit, file, make_set

from clary.base.errors import ObjectStoreError
from clary.contract.checkpoint_sets import manifest_key
from clary.control.objects import checkpoint_sets
from clary.control.objects.checkpoint_sets import SetState, list_sets


@pytest.fixture
def bucket():
    return FakeBucket()


def states(listing):
    return {(entry.host, entry.number): (entry.state.value, entry.fault) for entry in listing.sets}


async def test_sets_are_listed_newest_first_with_the_data_of_their_manifests(bucket):
    bucket.put("a", b"12345")
    bucket.put("b/c", b"123")
    commit(bucket, make_set("algo-1", 1, file("a", b"12345"), file("b/c", b"123"), attempt=2))
    commit(bucket, make_set("algo-2", 7, taken_at=TAKEN + timedelta(seconds=1)))
    listing = await list_sets(bucket, PLACE)
    assert [(entry.host, entry.number) for entry in listing.sets] == [("algo-2", 7), ("algo-1", 1)]
    first = listing.sets[1]
    assert (first.state, first.is_newest, first.num_files, first.size_bytes) == (SetState.WHOLE, True, 2, 8)
    assert (first.taken_at, first.attempt, first.job_arn) == (TAKEN, 2, "arn:x:training-job/demo")


async def test_a_prefix_without_objects_gives_an_empty_list(bucket):
    bucket.objects["ckpt/demo-2/x"] = b""
    assert (await list_sets(bucket, PLACE)).sets == ()


async def test_missing_files_and_files_of_another_size_make_a_set_incomplete(bucket):
    bucket.put("a", b"1234")
    commit(bucket, make_set("algo-1", 1, file("a", b"12345"), aside("b", b"x", "algo-1"), file("c", b"")))
    bucket.put("c", b"")
    listing = await list_sets(bucket, PLACE)
    assert states(listing) == {("algo-1", 1): ("incomplete", "of 3 files 1 gone, 1 with another size")}


async def test_a_damaged_manifest_is_listed_with_its_fault_among_the_other_sets(bucket):
    bucket.put("a", b"content")
    commit(bucket, make_set("algo-1", 1, file("a")))
    bucket.put(manifest_key("algo-1", 2), b'{"set": ')
    commit(bucket, make_set("algo-2", 1, file("x", key="../../secret")))
    listing = await list_sets(bucket, PLACE)
    found = states(listing)
    assert found["algo-1", 1] == ("whole", "")
    assert found["algo-1", 2][0] == "damaged"
    assert "this is no manifest of checkpoints (8 bytes)" in found["algo-1", 2][1]
    assert "is neither its path nor" in found["algo-2", 1][1]
    assert [entry.is_newest for entry in listing.sets if entry.host == "algo-1"] == [True, False]


async def test_older_sets_beyond_a_number_are_counted_and_not_read(bucket, monkeypatch):
    monkeypatch.setattr(checkpoint_sets, "MAX_SETS_PER_HOST", 2)
    for number in range(1, 6):
        commit(bucket, make_set("algo-1", number))
    listing = await list_sets(bucket, PLACE)
    assert ([entry.number for entry in listing.sets], listing.num_left_out) == ([5, 4], 3)


async def test_the_oldest_manifests_beyond_the_byte_limit_are_listed_as_unread(bucket, monkeypatch):
    for host in ("algo-1", "algo-2"):
        for number in (1, 2):
            commit(bucket, make_set(host, number))
    size = len(bucket.objects[PLACE.key(manifest_key("algo-1", 1))])
    monkeypatch.setattr(checkpoint_sets, "MAX_READ_BYTES", 2 * size)
    found = states(await list_sets(bucket, PLACE))
    assert [name for name, (state, _) in found.items() if state == "unread"] == [("algo-1", 1), ("algo-2", 1)]
    assert f"more than {2 * size} bytes together" in found["algo-1", 1][1]


async def test_a_manifest_that_is_too_large_is_unread_and_not_damaged(bucket, monkeypatch):
    commit(bucket, make_set("algo-1", 1))
    monkeypatch.setattr(checkpoint_sets, "MAX_MANIFEST_BYTES", 20)
    state, fault = states(await list_sets(bucket, PLACE))["algo-1", 1]
    assert (state, "it can be restored, but it is not read here" in fault) == ("unread", True)


async def test_a_manifest_that_the_store_refuses_is_unread_and_the_other_sets_are_listed(bucket):
    commit(bucket, make_set("algo-1", 1))
    commit(bucket, make_set("algo-2", 1))
    bucket.before = lambda what, key: FakeStream(b"", status=500) if what == "get" and "algo-1" in key else None
    found = states(await list_sets(bucket, PLACE))
    assert (found["algo-1", 1][0], found["algo-2", 1][0]) == ("unread", "whole")
    assert "answered 500" in found["algo-1", 1][1]


class FakeSlowBucket(FakeBucket):
    """Hangs on one kind of request."""

    def __init__(self, slow):
        super().__init__()
        self.slow = slow

    def open(self, bucket, key):
        return super().open(bucket, key) if self.slow != "get" else FakeStandstill()

    async def request(self, method, bucket, *, query=(), **rest):
        is_whole = dict(query)["prefix"] == PLACE.prefix
        if self.slow == ("sizes" if is_whole else "list"):
            await asyncio.sleep(60)
        return await super().request(method, bucket, query=query, **rest)


class FakeStandstill:
    async def __aenter__(self):
        await asyncio.sleep(60)

    async def __aexit__(self, *_):
        return None


@pytest.mark.parametrize(("slow", "words"), [("get", "no time to read"), ("sizes", "no time to list all objects")])
async def test_manifests_that_could_not_be_read_in_time_are_listed_as_unread(slow, words):
    bucket = FakeSlowBucket(slow)
    commit(bucket, make_set("algo-1", 1, file("a")))
    async with asyncio.timeout(30):
        listing = await list_sets(bucket, PLACE, timeout_s=0.2)
    assert listing.sets[0].state is SetState.UNREAD
    assert words in listing.sets[0].fault


async def test_a_store_that_does_not_list_in_time_is_an_error(bucket):
    slow = FakeSlowBucket("list")
    async with asyncio.timeout(30):
        with pytest.raises(ObjectStoreError, match="did not list the checkpoints below s3://b/ckpt/demo/ within"):
            await list_sets(slow, PLACE, timeout_s=0.2)


async def test_a_newest_set_that_is_replaced_during_the_listing_is_no_fault(bucket):
    bucket.put("a", b"one")
    commit(bucket, make_set("algo-1", 1, file("a", b"one")))

    def replace(what, key):
        if what == "list" and key == PLACE.prefix and PLACE.key(manifest_key("algo-1", 2)) not in bucket.objects:
            commit(bucket, make_set("algo-1", 2, file("a", b"three")))
            bucket.put("a", b"three")

    bucket.before = replace
    found = states(await list_sets(bucket, PLACE))
    assert found["algo-1", 2] == ("whole", "")
    assert found["algo-1", 1] == ("incomplete", "of 1 files 1 with another size")
