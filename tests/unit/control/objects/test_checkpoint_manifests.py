"""Content of a manifest: S3 URIs, paths, keys and sizes that are accepted, and hostile ones that are rejected."""

import hashlib
import json

import pytest
from checkpoint_bucket import PLACE, FakeBucket, FakeStream, aside, commit, file, make_set

from clary.agent.checkpoints.places import set_problem
from clary.base.errors import ContractError, ObjectStoreError
from clary.contract.checkpoint_sets import manifest_key, write_manifest
from clary.control.objects import checkpoint_manifests
from clary.control.objects.checkpoint_manifests import (
    MAX_OBJECT_BYTES,
    CheckpointPlace,
    find_manifests,
    host_order,
    load_set,
    why_unbelievable,
)


@pytest.mark.parametrize(
    ("uri", "bucket", "prefix"),
    [
        ("s3://my-bucket/ckpt/demo", "my-bucket", "ckpt/demo/"),
        ("s3://my-bucket/ckpt/demo/", "my-bucket", "ckpt/demo/"),
        ("s3://my-bucket", "my-bucket", ""),
        ("s3://my-bucket/", "my-bucket", ""),
        ("s3://my-bucket/ckpt//", "my-bucket", "ckpt/"),
        ("s3://my-bucket//ckpt///demo", "my-bucket", "ckpt/demo/"),
    ],
)
def test_a_uri_names_the_same_prefix_with_and_without_a_trailing_slash(uri, bucket, prefix):
    assert CheckpointPlace.of(uri) == CheckpointPlace(bucket, prefix)


@pytest.mark.parametrize("uri", ["https://b/k", "s3://", "s3:///k", "s3://../k", "s3://a b/k", "s3://b?x/k", "b/k", ""])
def test_a_uri_without_a_bucket_is_refused(uri):
    with pytest.raises(ContractError, match="expected s3://bucket/prefix"):
        CheckpointPlace.of(uri)


def test_a_set_as_agents_write_it_is_accepted():
    checkpoints = make_set(
        "algo-1", 3, file("a"), aside("b/c", b"x", "algo-1"), links={"b/l": "../a", "b/top": ".."}, gone=("old",)
    )
    assert why_unbelievable(checkpoints, host="algo-1", number=3) == ""


NEITHER = "is neither its path nor below .clary-checkpoints/algo-1/files/"
HOSTILE = {
    "a key that leaves the prefix": (file("a", key="../other/a"), NEITHER),
    "a key from the root": (file("a", key="/other/a"), NEITHER),
    "a key of another path": (file("a", key="b"), NEITHER),
    "a key that is a manifest": (file("a", key=".clary-checkpoints/algo-1/set-00000001.json"), NEITHER),
    "a key that leaves the own folder": (file("a", key=".clary-checkpoints/algo-1/files/../../x"), NEITHER),
    "a key of another host": (aside("a", b"x", "algo-2"), NEITHER),
    "content without a name": (file("a", key=".clary-checkpoints/algo-1/files/"), NEITHER),
    "a key that a terminal would obey": (file("a", key="\x1b[2J"), r"its key '\x1b[2J' is neither"),
    "a path that leaves the folder": (file("../a", key="a"), 'a part of its path is empty, "." or ".."'),
    "a path from the root": (file("/etc/passwd", key="a"), "a part of its path is empty"),
    "a path with NUL": (file("a\0b", key="a"), "NUL byte"),
    "a path that is not text": (file("a\udcff", key="a"), "not UTF-8"),
    "a path beyond the kernel's limit": (file("a/" * 2000 + "a", key="a"), "its path has 4001 bytes"),
    "a name beyond the kernel's limit": (file("\xe4" * 128, key="a"), "a part of it 256"),
    "a path in the own folder": (file(".clary-checkpoints/x", key="a"), "Clary's own"),
    "less than nothing": (file("a", size_bytes=-1), "no file has -1 bytes"),
    "more than any store holds": (file("a", size_bytes=MAX_OBJECT_BYTES + 1), "no file has"),
    "a size of a thousand digits": (file("a", size_bytes=10**1000), "no file has 1000"),
    "a sum that is none": (file("a", sha256="\x1b[2J"), r"'\x1b[2J' is no SHA-256"),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_files_are_named_with_their_reason_and_without_control_characters(what):
    hostile, words = HOSTILE[what]
    said = why_unbelievable(make_set("algo-1", 1, file("good"), hostile), host="algo-1", number=1)
    assert words in said
    assert said.isprintable()
    assert len(said) < 1000


CONTRADICTIONS = [
    (make_set("algo-1", 1, file("a"), file("a", b"x")), "'a' is named twice"),
    (make_set("algo-1", 1, file("a"), file("a/b/c")), "'a' is a file and, for 'a/b/c', also a folder"),
    (make_set("algo-2", 1, file("a")), "says that it is set 1 of 'algo-2'"),
    (make_set("algo-1", 2, file("a")), "says that it is set 2 of 'algo-1'"),
    (make_set("algo-1", 1, file("a"), links={"a": "b"}), "'a' is named twice"),
    (make_set("algo-1", 1, file("a"), folders=("a",)), "'a' is a file and a folder"),
    (make_set("algo-1", 1, file("a"), folders=("a/b",)), "'a' is a file and, for 'a/b', also a folder"),
    (make_set("algo-1", 1, links={"x/y": "../../z"}), "link 'x/y' leaves the folder"),
    (make_set("algo-1", 1, links={"x": "/etc/passwd"}), "link 'x' leaves the folder"),
    (make_set("algo-1", 1, folders=("../x",)), "'../x': a part of its path"),
    (make_set("algo-1", 1, links={"x/../../y": "z"}), "a part of its path"),
    (make_set("algo-1", 1, gone=("",)), "a part of its path is empty"),
]


@pytest.mark.parametrize(("checkpoints", "words"), CONTRADICTIONS)
def test_sets_that_contradict_themselves_are_rejected(checkpoints, words):
    assert words in why_unbelievable(checkpoints, host="algo-1", number=1)


def test_every_set_that_agents_refuse_to_restore_is_rejected():
    hostile = [make_set("algo-1", 1, item) for item, _ in HOSTILE.values()] + [item for item, _ in CONTRADICTIONS]
    refused = [item for item in hostile if set_problem(item, host="algo-1", number=1) is not None]
    assert len(refused) > len(hostile) // 2
    assert all(why_unbelievable(item, host="algo-1", number=1) for item in refused)


async def test_manifests_of_all_hosts_are_listed_newest_first_over_many_pages():
    bucket = FakeBucket()
    for host in ("algo-1", "algo-2", "algo-10"):
        for number in (1, 2, 3):
            commit(bucket, make_set(host, number))
    bucket.put(".clary-checkpoints/algo-1/files/" + "0" * 64, b"")
    bucket.put(".clary-checkpoints/algo-1/set-1.json", b"no key of a manifest")
    bucket.put(".clary-checkpoints/../set-00000001.json", b"no host")
    bucket.objects["ckpt/demo-2/.clary-checkpoints/algo-9/set-00000001.json"] = b"of a neighbour"
    found = await find_manifests(bucket, PLACE)
    assert list(found) == ["algo-1", "algo-2", "algo-10"]
    assert [manifest.number for manifest in found["algo-10"]] == [3, 2, 1]
    assert list(await find_manifests(bucket, PLACE, host="algo-2")) == ["algo-2"]


def test_hosts_are_sorted_by_their_numbers():
    names = ["algo-10", "algo-2", "algo-1", "other", "algo-" + "9" * 400]
    assert sorted(names, key=host_order)[:3] == ["algo-1", "algo-2", "algo-10"]


async def test_a_manifest_is_read_and_a_damaged_one_gives_the_reason(monkeypatch):
    bucket = FakeBucket()
    commit(bucket, make_set("algo-1", 1, file("a")))
    assert (await load_set(bucket, PLACE, host="algo-1", number=1)).files == (file("a"),)
    key = manifest_key("algo-1", 1)
    whole = bucket.objects[PLACE.key(key)]
    deep = b'{"sha256": "", "set": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    for damaged in (b"", b"{}", b"[]", whole[:-20], whole.replace(b'"a"', b'"b"'), b"\xff", deep, b"null", b"1"):
        bucket.put(key, damaged)
        with pytest.raises(ContractError, match="manifest of checkpoints"):
            await load_set(bucket, PLACE, host="algo-1", number=1)
    bucket.put(key, whole)
    with pytest.raises(ContractError, match="the manifest is gone"):
        await load_set(bucket, PLACE, host="algo-1", number=2)
    monkeypatch.setattr(checkpoint_manifests, "MAX_MANIFEST_BYTES", 20)
    with pytest.raises(ContractError, match="it is not read here"):
        await load_set(bucket, PLACE, host="algo-1", number=1)


@pytest.mark.parametrize("value", ["2", None, [], 10**400])
async def test_a_format_that_is_no_number_or_too_new_is_refused_with_a_message(value):
    document = json.loads(write_manifest(make_set("algo-1", 1)))
    document["set"]["format"] = value
    text = json.dumps(document["set"], sort_keys=True, separators=(",", ":"))
    document["sha256"] = hashlib.sha256(text.encode()).hexdigest()
    bucket = FakeBucket()
    bucket.put(manifest_key("algo-1", 1), json.dumps(document).encode())
    with pytest.raises(ContractError, match="format"):
        await load_set(bucket, PLACE, host="algo-1", number=1)


async def test_a_refusal_of_the_store_is_an_error_of_the_store_and_no_damage():
    bucket = FakeBucket()
    bucket.before = lambda what, key: FakeStream(b"", status=503)
    with pytest.raises(ObjectStoreError, match="answered 503") as caught:
        await load_set(bucket, PLACE, host="algo-1", number=1)
    assert caught.value.retryable
