"""Verification of checkpoint sets: every file is read, and every fault is named."""

import asyncio

import pytest
from checkpoint_bucket import PLACE, FakeBucket, FakeStream, aside, commit, file, make_set

from clary.base.errors import ObjectStoreError
from clary.control.objects import checkpoint_verification
from clary.control.objects.checkpoint_verification import SetTarget, VerificationReport, verify_sets

BODY = bytes(range(256)) * 20


@pytest.fixture
def bucket(monkeypatch):
    monkeypatch.setattr(checkpoint_verification, "RETRY_PAUSE_S", 0.0)
    monkeypatch.setattr(checkpoint_verification, "HASH_PIECE_BYTES", 1000)
    return FakeBucket()


def newest(host="algo-1", number=1):
    return SetTarget(host=host, number=number, follows=True)


async def verified(bucket, *targets):
    report = VerificationReport()
    await verify_sets(bucket, PLACE, targets or (newest(),), report)
    return report


def wrong(report):
    return {finding.path: finding.fault for item in report.sets for finding in item.wrong.first}


def plain(report):
    return {finding.path: finding.fault for item in report.sets for finding in item.plain.first}


async def test_a_whole_set_is_read_to_its_last_byte(bucket):
    bucket.put("a", BODY)
    bucket.put("b/empty", b"")
    commit(bucket, make_set("algo-1", 1, file("a", BODY), file("b/empty", b"")))
    report = await verified(bucket)
    assert report.is_whole
    assert (report.bytes_read, report.size_bytes, report.sets[0].num_read) == (len(BODY), len(BODY), 2)
    assert (wrong(report), plain(report)) == ({}, {})


@pytest.mark.parametrize(
    ("left_out", "doubtful"), [(("ck/shard", "run/"), ["ck/shard", "run/"]), (None, [".", "ck/"]), ((), [])]
)
async def test_a_set_that_may_lack_a_file_is_as_stored_but_not_known_to_be_whole(bucket, left_out, doubtful):
    for path in ("a", "ck/b"):
        bucket.put(path, BODY)
    commit(bucket, make_set("algo-1", 1, file("a", BODY), file("ck/b", BODY), left_out=left_out))
    report = await verified(bucket)
    assert (report.is_as_stored, report.is_whole) == (True, not doubtful)
    assert report.sets[0].doubtful == doubtful
    assert report.sets[0].evidence == {"closed": 2} | ({"left-out": 2} if doubtful else {})


async def test_missing_short_long_and_changed_files_are_distinguished(bucket):
    changed = BODY[:-1] + b"!"
    names = ("missing", "short", "long", "changed", "good")
    commit(bucket, make_set("algo-1", 1, *(file(name, BODY) for name in names)))
    for name, body in zip(names[1:], (BODY[:-1], BODY + b"!", changed, BODY), strict=True):
        bucket.put(name, body)
    report = await verified(bucket)
    found = wrong(report)
    assert not report.is_whole
    assert found.keys() == set(names) - {"good"}
    assert found["missing"] == "is missing"
    assert found["short"] == f"has {len(BODY) - 1} bytes, expected {len(BODY)}"
    assert found["long"] == f"has {len(BODY) + 1} bytes, expected {len(BODY)}"
    assert found["changed"].startswith("has other content: SHA-256 ")


async def test_a_body_of_unknown_length_is_read_hardly_further_than_expected(bucket):
    commit(bucket, make_set("algo-1", 1, file("a", b"12345")))
    endless = FakeStream(b"1234567" * 10_000, content_length=None)
    bucket.before = lambda what, key: endless if key.endswith("/a") and what == "get" else None
    report = await verified(bucket)
    assert wrong(report)["a"] == "has more than 5 bytes, as many were expected"
    assert report.bytes_read == 7


async def test_a_wrong_size_is_found_without_reading_the_object(bucket):
    commit(bucket, make_set("algo-1", 1, file("a", b"x", size_bytes=1 << 49)))
    bucket.put("a", b"x")
    report = await verified(bucket)
    assert wrong(report)["a"] == f"has 1 bytes, expected {1 << 49}"
    assert report.bytes_read == 0


async def test_a_damaged_manifest_is_a_broken_set_and_the_next_host_is_still_read(bucket):
    bucket.put(".clary-checkpoints/algo-1/set-00000001.json", b"{")
    bucket.put("a", b"x")
    commit(bucket, make_set("algo-2", 4, file("a", b"x")))
    report = await verified(bucket, newest(), newest("algo-2", 4))
    assert not report.is_whole
    assert [(item.host, item.is_whole) for item in report.sets] == [("algo-1", False), ("algo-2", True)]
    assert "no manifest" in report.sets[0].fault


async def test_a_broken_off_read_is_retried(bucket):
    bucket.put("a", BODY)
    commit(bucket, make_set("algo-1", 1, file("a", BODY)))
    answers = [FakeStream(BODY[:50], content_length=len(BODY), breaks_off=True), FakeStream(b"", status=503), None]
    bucket.before = lambda what, key: answers.pop(0) if what == "get" and key.endswith("/a") else None
    assert (await verified(bucket)).is_whole
    assert answers == []


@pytest.mark.parametrize(("status", "times"), [(503, 3), (403, 1)])
async def test_a_file_that_can_not_be_read_is_reported_with_the_store_s_answer(bucket, status, times):
    commit(bucket, make_set("algo-1", 1, file("a", BODY)))
    asked = []

    def refuse(what, key):
        if what == "get" and key.endswith("/a"):
            asked.append(key)
            return FakeStream(b"", status=status)
        return None

    bucket.before = refuse
    report = await verified(bucket)
    assert wrong(report)["a"] == f"could not be read: the object store answered {status}"
    assert len(asked) == times


async def test_an_unreachable_store_ends_the_verification_with_its_error(bucket):
    def refuse(what, key):
        raise ObjectStoreError("no answer", retryable=True)

    bucket.before = refuse
    report = await verified(bucket)
    assert (report.error, report.is_whole) == ("no answer", False)


async def test_faulty_plain_paths_are_distinguished_and_leave_the_set_whole(bucket):
    aside_files = [aside(name, BODY, "algo-1") for name in ("same", "missing", "other")]
    for item in aside_files:
        bucket.put(item.key, BODY)
    bucket.put("same", BODY)
    bucket.put("other", BODY[::-1])
    commit(bucket, make_set("algo-1", 1, *aside_files))
    report = await verified(bucket)
    assert report.is_whole
    assert plain(report)["missing"] == "is missing"
    assert plain(report)["other"].startswith("has other content")
    assert "same" not in plain(report)


async def test_a_plain_path_shared_by_two_hosts_names_the_host_whose_file_is_stored_there(bucket):
    bucket.put("rank.pt", b"of algo-1")
    commit(bucket, make_set("algo-1", 1, file("rank.pt", b"of algo-1")))
    second = aside("rank.pt", b"of algo-2", "algo-2")
    bucket.put(second.key, b"of algo-2")
    commit(bucket, make_set("algo-2", 1, second))
    report = await verified(bucket, newest(), newest("algo-2"))
    assert report.is_whole
    assert plain(report)["rank.pt"].endswith("; algo-1 has a file of this name too")


async def test_a_set_that_is_replaced_during_the_read_is_followed_by_the_newer_set(bucket):
    bucket.put("a", b"new")
    commit(bucket, make_set("algo-1", 1, file("a", b"old")))
    commit(bucket, make_set("algo-1", 2, file("a", b"new")))
    report = await verified(bucket, newest(number=1))
    assert [(item.number, item.is_whole) for item in report.sets] == [(2, True)]
    asked_for = await verified(bucket, SetTarget(host="algo-1", number=1, follows=False))
    assert [(item.number, item.is_whole) for item in asked_for.sets] == [(1, False)]


async def test_an_agent_that_replaces_sets_forever_does_not_keep_the_reader_busy_forever(bucket):
    bucket.put("a", b"other")
    numbers = [1]
    commit(bucket, make_set("algo-1", 1, file("a", b"x")))

    def go_on(what, key):
        if what == "get" and key.endswith("/a"):
            numbers.append(numbers[-1] + 1)
            commit(bucket, make_set("algo-1", numbers[-1], file("a", b"x")))

    bucket.before = go_on
    async with asyncio.timeout(30):
        report = await verified(bucket)
    assert len(report.sets) == 1
    assert not report.is_whole
    assert report.sets[0].number == checkpoint_verification.MAX_NEWER + 1


async def test_findings_beyond_a_number_are_counted(bucket, monkeypatch):
    monkeypatch.setattr(checkpoint_verification, "MAX_FINDINGS", 2)
    commit(bucket, make_set("algo-1", 1, *(file(str(number)) for number in range(5))))
    report = await verified(bucket)
    assert (report.sets[0].wrong.count, len(report.sets[0].wrong.first)) == (5, 2)
