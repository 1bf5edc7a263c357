"""A full disk of the state folder: its messages, and the work that continues in spite of it."""

import errno
import os
from types import SimpleNamespace

import pytest

from clary.base.errors import NOTHING_CHANGED, ContractError, Fault, ObjectStoreError, StoreError, WireError
from clary.contract.launch_plan import Credentials
from clary.contract.sigv4 import payload_hash, sign
from clary.control import full_disks
from clary.control.full_disks import MIN_FREE_BYTES, why_full
from clary.control.jobs import events
from clary.control.objects import weed_security
from clary.control.objects.seaweed import EmbeddedStore
from clary.control.objects.weed_process import StoreRecord
from clary.control.server import aws_handler
from clary.control.server.edge.passing_troubles import why_not_now
from clary.control.server.service import _end_jobs
from clary.control.state_folder import StateFolder
from clary.control.wire.messages import HttpRequest
from clary.control.wire.signatures import SignatureVerifier
from clary.testing.fake_clock import FakeClock

JSON = "application/x-amz-json-1.1"
NO_ROOM = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/state/file")


def refuse(*_arguments, **_options):
    raise NO_ROOM


@pytest.mark.parametrize("free_bytes", [0, MIN_FREE_BYTES - 1024, MIN_FREE_BYTES])
def test_a_disk_counts_as_full_before_its_last_byte(tmp_path, monkeypatch, free_bytes):
    facts = SimpleNamespace(f_bavail=free_bytes // 1024, f_frsize=1024)
    monkeypatch.setattr(full_disks.os, "statvfs", lambda _: facts)
    said = why_full(tmp_path / "not-made" / "yet")
    if free_bytes >= MIN_FREE_BYTES:
        assert said == ""
    else:
        assert f"not-made/yet is full ({free_bytes} bytes are free, at least {MIN_FREE_BYTES}" in said
        assert "free space there" in said


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
        ObjectStoreError, match="can not be written: No space left on device"
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
