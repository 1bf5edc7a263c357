"""A full disk of the state folder: its messages, and the work that continues in spite of it."""

import errno
import os
import sqlite3
from types import SimpleNamespace

import pytest
from sqlalchemy.exc import OperationalError

from clary.base.errors import NOTHING_CHANGED, ContractError, Fault, ObjectStoreError, StoreError, WireError
from clary.contract.launch_plan import Credentials
from clary.contract.sigv4 import payload_hash, sign
from clary.control import full_disks
from clary.control.full_disks import MIN_FREE_BYTES, MIN_FREE_FILES, StoreDisk, why_full, why_unwritable
from clary.control.jobs import events
from clary.control.objects import weed_security
from clary.control.objects.seaweed import EmbeddedStore
from clary.control.objects.weed_process import StoreRecord
from clary.control.server import aws_handler
from clary.control.server.edge.passing_troubles import why_not_now
from clary.control.server.service import _end_jobs
from clary.control.server.succession import check_start
from clary.control.settings import Settings
from clary.control.state_folder import StateFolder
from clary.control.store.database import describe_failure
from clary.control.wire.messages import HttpRequest
from clary.control.wire.signatures import SignatureVerifier
from clary.testing.fake_clock import FakeClock

JSON = "application/x-amz-json-1.1"
NO_ROOM = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/state/file")


def refuse(*_arguments, **_options):
    raise NO_ROOM


def disk_facts(free_bytes, *, of_bytes=1 << 40, free_files=1_000, files=5_000, flags=0):
    sizes = {"f_bavail": free_bytes // 1024, "f_blocks": of_bytes // 1024, "f_frsize": 1024}
    return SimpleNamespace(**sizes, f_files=files, f_favail=free_files, f_flag=flags)


@pytest.mark.parametrize("free_bytes", [0, MIN_FREE_BYTES - 1024, MIN_FREE_BYTES])
def test_a_disk_counts_as_full_before_its_last_byte(tmp_path, monkeypatch, free_bytes):
    monkeypatch.setattr(full_disks.os, "statvfs", lambda _: disk_facts(free_bytes))
    said = why_full(tmp_path / "not-made" / "yet")
    if free_bytes >= MIN_FREE_BYTES:
        assert said == ""
    else:
        assert f"not-made/yet is full ({free_bytes} bytes are free, at least {MIN_FREE_BYTES}" in said
        assert "free space there" in said


@pytest.mark.parametrize(
    ("free_files", "files", "words"),
    [
        (0, 38_400, "0 inodes are free"),
        (MIN_FREE_FILES - 1, 38_400, "remove files"),
        (MIN_FREE_FILES, 38_400, ""),
        (0, 0, ""),
    ],
)
def test_a_disk_without_free_inodes_takes_no_files(tmp_path, monkeypatch, free_files, files, words):
    monkeypatch.setattr(full_disks.os, "statvfs", lambda _: disk_facts(1 << 30, free_files=free_files, files=files))
    said = why_full(tmp_path)
    assert words in said
    assert bool(said) == bool(words)


def test_a_disk_that_the_kernel_mounted_read_only_is_named_with_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setattr(full_disks.os, "statvfs", lambda _: disk_facts(1 << 30, flags=os.ST_RDONLY))
    assert "is mounted read-only: look in the kernel's log" in why_unwritable(tmp_path)
    assert why_full(tmp_path) == ""


def test_the_object_store_needs_a_part_of_a_large_disk_and_notices_room_late(tmp_path, monkeypatch):
    now = [1000.0]
    disk = StoreDisk(tmp_path, min_free_share=0.01, look_s=60.0, monotonic=lambda: now[0])
    facts = [disk_facts(1 << 31, of_bytes=400 << 30)]
    monkeypatch.setattr(full_disks.os, "statvfs", lambda _: facts[0])
    assert f"at least {4 << 30}, 1% of the disk, are needed" in disk.why_unwritable()
    assert why_full(tmp_path) == ""
    facts[0] = disk_facts(1 << 35, of_bytes=400 << 30)
    now[0] += 59
    assert "was full until a moment ago" in disk.why_unwritable()
    now[0] += 1
    assert disk.why_unwritable() == ""


async def test_a_store_on_a_disk_too_full_for_objects_starts_for_reads(tmp_path, monkeypatch, caplog):
    """Weed takes no objects below 1 % of free disk: a start that waits for a put would never end."""
    calls = []

    class FakeClient:
        async def probe(self, bucket):
            calls.append(("put, get and delete", bucket))

        async def probe_listing(self, bucket):
            calls.append(("list", bucket))

    store = EmbeddedStore(tmp_path, credentials=Credentials(access_key_id="A", secret_access_key="B"))
    for free_bytes in (1 << 31, 1 << 35):
        facts = disk_facts(free_bytes, of_bytes=400 << 30)
        monkeypatch.setattr(full_disks.os, "statvfs", lambda _, facts=facts: facts)
        await store._probe(FakeClient())
    assert calls == [("list", "clary"), ("put, get and delete", "clary")]
    assert "takes no new ones: the disk of" in caplog.text


def test_a_read_only_disk_is_not_reported_as_missing_rights(tmp_path, monkeypatch):
    def refuse_writing(*_arguments, **_options):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(tmp_path))

    monkeypatch.setattr("pathlib.Path.mkdir", refuse_writing)
    # A container's own disk is read-only on purpose.
    with pytest.raises(ContractError, match=r"Read-only file system; look in the kernel's log.*CLARY_HOME"):
        StateFolder(tmp_path / "state").create()


def test_a_service_does_not_give_way_to_one_that_could_not_start_on_its_disk(tmp_path, monkeypatch):
    StateFolder(tmp_path).create()
    monkeypatch.setattr(full_disks.os, "statvfs", lambda _: disk_facts(1 << 30, flags=os.ST_RDONLY))
    with pytest.raises(StoreError, match=r"the next service would not start: .* is mounted read-only"):
        check_start(Settings(home=str(tmp_path), port=0, tls_port=0))


@pytest.mark.parametrize("number", [errno.EROFS, errno.EIO])
def test_clients_are_told_of_a_broken_disk(number):
    said = why_not_now(OSError(number, os.strerror(number), "/state/file"))
    assert f"/state/file could not be read or written: {os.strerror(number)}; look in the kernel's log" in said


@pytest.mark.parametrize("code", ["SQLITE_IOERR_WRITE", "SQLITE_READONLY_DBMOVED", "SQLITE_CANTOPEN"])
def test_a_database_on_a_broken_disk_says_what_to_do(code):
    refused = sqlite3.OperationalError("disk I/O error")
    refused.sqlite_errorcode = getattr(sqlite3, code)
    said = describe_failure("a write was refused", OperationalError("INSERT", {}, refused))
    assert "disk I/O error; look in the kernel's log" in said.message
    assert said.fault is Fault.INFRASTRUCTURE


def test_a_full_disk_is_not_reported_as_missing_rights(tmp_path, monkeypatch):
    monkeypatch.setattr("pathlib.Path.mkdir", refuse)
    with pytest.raises(ContractError, match="No space left on device; free space there"):
        StateFolder(tmp_path / "state").create()


def test_clients_are_told_to_free_space_only_for_full_disks_and_not_for_defects():
    assert "/state/file could not be written: No space left on device; free space" in why_not_now(NO_ROOM)
    assert why_not_now(StoreError("the database is away", fault=Fault.INFRASTRUCTURE)) == "the database is away"
    for defect in (StoreError("a bug"), OSError(errno.EACCES, "Permission denied"), KeyError("name")):
        assert why_not_now(defect) == ""


async def test_clients_that_retry_at_once_get_the_error_of_the_disk_again():
    """A retry within the same second has the same signature and must not be refused as a repetition."""
    clock = FakeClock()
    keys = Credentials(access_key_id="AKID", secret_access_key="secret")
    verifier = SignatureVerifier(lambda _: keys.secret_access_key, clock, skew_s=300)
    refusals = iter([{NOTHING_CHANGED: True}, {}, None])

    async def full(*_arguments):
        refused = WireError("ServiceUnavailable", "the disk is full", http_status=503)
        refused.details.update(next(refusals))
        raise refused

    body = b'{"TrainingJobName": "job"}'
    headers = {"host": "127.0.0.1", "x-amz-target": "SageMaker.StopTrainingJob", "content-type": JSON}
    signed = sign(
        "POST", "/", "", headers, payload_hash(body), credentials=keys, region="r", service="sagemaker", now=clock.now()
    )
    request = HttpRequest("POST", "/", "", [*headers.items(), *signed.items()], body)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(aws_handler, "dispatch", full)
        handler = aws_handler.AwsHandler(None, verifier)
        answers = [await handler.handle(request) for _ in range(3)]
    assert [answer.status for answer in answers] == [503, 503, 400]  # the second request may have changed data


async def test_a_store_that_finds_no_space_at_its_start_is_started_again(tmp_path, monkeypatch):
    store = EmbeddedStore(tmp_path, credentials=Credentials(access_key_id="A", secret_access_key="B"))
    store._record = StoreRecord(ports={"s3": 1})
    monkeypatch.setattr(weed_security, "write_security", refuse)
    with pytest.raises(
        ObjectStoreError, match="cannot be written: No space left on device"
    ):  # the error that the watch expects
        await store._launch()
    monkeypatch.setattr(StoreRecord, "write", refuse)
    await store.stop()  # it completes without its record


async def test_jobs_whose_end_cannot_be_stored_keep_running_and_the_others_end(caplog):
    class FakeHub:
        def __init__(self):
            self.names = ["stuck", "ends"]

        def active_jobs(self):
            return [SimpleNamespace(name=name) for name in self.names]

        async def apply(self, name, event):
            assert isinstance(event, events.StopWanted)
            if name == "stuck":
                raise StoreError("the disk is full", fault=Fault.INFRASTRUCTURE)

        async def wait_for_job(self, name, timeout_s):
            assert name == "ends", "a job that was not told to stop is waited for"
            self.names.remove(name)

    class FakeReconciler:
        async def give_pools_back(self):
            raise StoreError("the disk is full", fault=Fault.INFRASTRUCTURE)

    hub = FakeHub()
    await _end_jobs(hub, FakeReconciler())
    assert hub.names == ["stuck"]
    assert "job stuck could not be stopped and continues to run" in caplog.text


async def test_a_job_that_becomes_active_while_the_others_end_is_ended_too():
    class FakeHub:
        def __init__(self):
            self.names, self.told = ["early"], []

        def active_jobs(self):
            return [SimpleNamespace(name=name) for name in self.names]

        async def apply(self, name, event):
            self.told.append(name)

        async def wait_for_job(self, name, timeout_s):
            if name == "early":
                self.names.append("late")  # its start was being stored when the service began to end
            self.names.remove(name)

    class FakeReconciler:
        async def give_pools_back(self):
            pass

    hub = FakeHub()
    await _end_jobs(hub, FakeReconciler())
    assert (hub.told, hub.names) == (["early", "late"], [])
