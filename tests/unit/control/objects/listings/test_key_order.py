"""Listings of a store that lists folder by folder, in the order of the keys."""

import asyncio
import random

import pytest

from clary.contract.object_store.stored_names import stored_name
from clary.control.objects.listings.key_order import Entry, KeyWalk, NoProgress, Window


class FolderStore:
    """Lists as SeaweedFS does: folder by folder, and a marker that names a folder skips all of it."""

    def __init__(self, keys, size, *, has_folders=False):
        self._keys = sorted(keys, key=_place)
        self._size = size
        self._has_folders = has_folders
        self.num_requests = 0

    async def fetch(self, prefix, after, is_brief):
        self.num_requests += 1
        size = min(self._size, 2) if is_brief else self._size
        shown = {}
        for key in self._keys:
            if not key.startswith(prefix):
                continue
            begin, slash, _ = key[len(prefix) :].partition("/")
            name = f"{prefix}{begin}/" if slash and self._has_folders else key
            stored = stored_name(name).removesuffix("/")
            if _place(stored) > _place(after) and not f"{stored}/".startswith(f"{after}/"):
                shown[name] = Entry(key=name, element=name.encode())
        entries = list(shown.values())
        return Window(entries=entries[:size], is_last=len(entries) <= size)


def _place(key):
    return stored_name(key).replace("/", "\0")


def listed(keys, prefix="", after="", size=3, *, has_folders=False):
    store = FolderStore(keys, size, has_folders=has_folders)

    async def collect():
        return [entry.key async for entry in KeyWalk(store.fetch, has_folders=has_folders).entries(prefix, after)]

    return asyncio.run(collect())


def expected(keys, prefix="", after="", *, has_folders=False):
    shown = set()
    for key in keys:
        if key.startswith(prefix):
            begin, slash, _ = key[len(prefix) :].partition("/")
            shown.add(f"{prefix}{begin}/" if slash and has_folders else key)
    return sorted(
        key for key in shown if key > after and not (has_folders and after.startswith(key) and key[-1] == "/")
    )


NEIGHBOURS = [
    "run/1",
    "run/2",
    "run/x/1",
    "run/x.txt",
    "run/x-1/1",
    "run-1/1",
    "run-1/2",
    "run.txt",
    "run0",
    "run",
    "ru",
]


@pytest.mark.parametrize("size", [2, 3, 50])
def test_a_folder_follows_the_names_that_precede_its_slash(size):
    assert listed(NEIGHBOURS, size=size) == sorted(NEIGHBOURS)
    assert listed(NEIGHBOURS, size=size, has_folders=True) == ["ru", "run", "run-1/", "run.txt", "run/", "run0"]


def test_a_marker_that_names_a_folder_does_not_skip_its_keys():
    assert listed(NEIGHBOURS, after="run")[:2] == ["run-1/1", "run-1/2"]
    assert "run/1" in listed(NEIGHBOURS, after="run")


def random_keys(chance):
    parts = [[chance.choices("a-.0 é", k=chance.randint(0, 2)) for _ in range(chance.randint(1, 4))] for _ in range(20)]
    keys = {"/".join("".join(part) for part in key) for key in parts}
    return {key for key in keys if key and not {".", ".."} & set(key.split("/")) and not key.endswith("/")}


def test_listings_of_random_keys_are_in_order_from_every_marker():
    chance = random.Random(5)
    for _ in range(1500):
        keys = random_keys(chance)
        facts = {
            "prefix": chance.choice(["", "", "a", "a/", "a-", "0/a"]),
            "after": chance.choice(["", *sorted(keys), "a", "a-", "a/", "-", "é"]),
            "has_folders": chance.random() < 0.5,
        }
        size = chance.choice([2, 3, 40])
        assert listed(keys, size=size, **facts) == expected(keys, **facts), (keys, size, facts)


def test_a_listing_of_small_folders_takes_few_requests():
    keys = [f"job-{number}/output/model.tar.gz" for number in range(500)]
    store = FolderStore(keys, 1000)

    async def collect():
        return [entry.key async for entry in KeyWalk(store.fetch, has_folders=False).entries("", "")]

    assert asyncio.run(collect()) == sorted(keys)
    assert store.num_requests == 1


def test_keys_below_five_hundred_folders_take_a_request_for_each_folder():
    keys = [f"{'a/' * 505}{number}" for number in range(5)]
    store = FolderStore(keys, 2)

    async def collect():
        return [entry.key async for entry in KeyWalk(store.fetch, has_folders=False).entries("", "")]

    assert asyncio.run(collect()) == keys
    assert store.num_requests < 520


def test_a_store_that_shows_none_of_the_entries_that_follow_ends_no_listing():
    async def fetch(prefix, after, is_brief):
        return Window(entries=[], is_last=False)

    async def collect():
        return [entry.key async for entry in KeyWalk(fetch, has_folders=False).entries("", "")]

    with pytest.raises(NoProgress):
        asyncio.run(collect())
