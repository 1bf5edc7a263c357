"""Existence of inputs: found inputs are cached for a moment, missing inputs are queried every time."""

from types import SimpleNamespace

import pytest

from clary.base.errors import ObjectStoreError
from clary.control.objects import lookup
from clary.control.objects.lookup import REMEMBER_S, ObjectLookup

FOUND = b"<ListBucketResult><Contents><Key>k</Key></Contents></ListBucketResult>"
EMPTY = b"<ListBucketResult></ListBucketResult>"


class FakeStore:
    def __init__(self):
        self.answers = [(200, FOUND)]
        self.asked = []

    async def request(self, method, bucket, *, query=()):
        self.asked.append((bucket, dict(query)["prefix"]) if query else (method, bucket))
        status, body = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return SimpleNamespace(status=status, body=body)

    async def ensure_bucket(self, bucket):
        self.asked.append(("PUT", bucket))


class FakeClock:
    seconds = 0.0

    def monotonic(self):
        return self.seconds


@pytest.fixture
def store():
    return FakeStore()


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def objects(store, clock):
    return ObjectLookup(store, clock)


async def test_a_found_input_is_queried_again_only_after_the_cache_time(objects, store, clock):
    assert await objects.has_objects("b", "p")
    clock.seconds = REMEMBER_S - 0.1
    assert await objects.has_objects("b", "p")
    assert len(store.asked) == 1
    clock.seconds = REMEMBER_S
    assert await objects.has_objects("b", "p")
    assert len(store.asked) == 2


async def test_a_missing_input_is_queried_every_time(objects, store):
    store.answers = [(200, EMPTY), (200, FOUND)]
    assert not await objects.has_objects("b", "p")
    assert await objects.has_objects("b", "p")


async def test_each_prefix_and_bucket_is_queried_separately(objects, store):
    await objects.has_objects("b", "p")
    await objects.has_objects("b", "q")
    await objects.has_objects("c", "p")
    assert store.asked == [("b", "p"), ("b", "q"), ("c", "p")]


async def test_a_bucket_that_does_not_exist_has_no_objects(objects, store):
    store.answers = [(404, b"<Error/>")]
    assert not await objects.has_objects("b", "p")


@pytest.mark.parametrize("status", [403, 500, 503])
async def test_an_error_of_the_store_is_raised_and_names_the_prefix(objects, store, status):
    store.answers = [(status, b"")]
    with pytest.raises(ObjectStoreError, match=rf"answered {status} when asked for s3://b/p"):
        await objects.has_objects("b", "p")


async def test_an_existing_or_created_bucket_is_cached_for_a_moment(objects, store, clock):
    store.answers = [(404, b""), (200, b"")]
    assert not await objects.has_bucket("b")
    await objects.make_bucket("b")
    assert await objects.has_bucket("b")
    assert store.asked == [("HEAD", "b"), ("PUT", "b")]
    clock.seconds = REMEMBER_S
    assert await objects.has_bucket("b")
    assert len(store.asked) == 3


async def test_a_bucket_and_its_objects_are_queried_separately(objects, store):
    assert await objects.has_bucket("b")
    store.answers = [(200, EMPTY)]
    assert not await objects.has_objects("b", "")
    assert store.asked == [("HEAD", "b"), ("b", "")]


async def test_a_bucket_without_access_is_an_error_that_names_the_bucket(objects, store):
    store.answers = [(403, b"")]
    with pytest.raises(ObjectStoreError, match="answered 403 when asked for bucket b"):
        await objects.has_bucket("b")


async def test_the_cache_is_bounded(objects, store, monkeypatch):
    monkeypatch.setattr(lookup, "MAX_REMEMBERED", 2)
    for prefix in ("a", "b", "c"):
        await objects.has_objects("b", prefix)
    assert len(objects._found) <= 2
    await objects.has_objects("b", "c")
    assert len(store.asked) == 3


class FakePublicBuckets:
    def __init__(self, found):
        self.found = found
        self.asked = []

    def names(self, bucket):
        return bucket == "open-data"

    async def has_objects(self, bucket, prefix):
        self.asked.append((bucket, prefix))
        return self.found


@pytest.mark.parametrize("found", [True, False])
async def test_a_public_bucket_is_asked_only_where_no_bucket_of_its_name_exists_here(store, clock, found):
    public = FakePublicBuckets(found)
    objects = ObjectLookup(store, clock, public)
    assert await objects.has_objects("open-data", "here")
    assert public.asked == []
    store.answers = [(404, b"")]
    assert await objects.has_objects("open-data", "p") is found
    assert not await objects.has_objects("mine", "p")
    assert public.asked == [("open-data", "p")]


async def test_a_public_bucket_is_no_bucket_of_this_service(store, clock):
    store.answers = [(404, b"")]
    assert not await ObjectLookup(store, clock, FakePublicBuckets(found=True)).has_bucket("open-data")
