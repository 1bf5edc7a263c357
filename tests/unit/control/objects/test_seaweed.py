"""The embedded object store's restarts, without a store's process."""

import asyncio
import errno
import os
import subprocess
import sys

import pytest

from clary.base.errors import ObjectStoreError
from clary.base.processes import ProcessId
from clary.contract.launch_plan import Credentials
from clary.control import background_tasks
from clary.control.objects import seaweed
from clary.control.objects.seaweed import FIRST_BACKOFF_S, STEADY_S, EmbeddedStore
from clary.control.objects.weed_process import StoreRecord


async def test_failed_restarts_after_a_steady_run_have_growing_pauses(tmp_path, monkeypatch):
    store = EmbeddedStore(tmp_path, credentials=Credentials(access_key_id="key", secret_access_key="secret"))
    times = iter([0.0])
    pauses = []

    async def sleep(seconds):
        pauses.append(seconds)
        if len(pauses) == 4:
            raise asyncio.CancelledError

    async def launch():
        raise ObjectStoreError("the disk is full")

    monkeypatch.setattr(seaweed.time, "monotonic", lambda: next(times, STEADY_S + 1.0))
    monkeypatch.setattr(seaweed.asyncio, "sleep", sleep)
    monkeypatch.setattr(store, "_launch", launch)
    with pytest.raises(asyncio.CancelledError):
        await store._watch()
    assert pauses == [FIRST_BACKOFF_S * factor for factor in (1, 2, 4, 8)]


async def test_the_end_of_a_process_is_noticed_after_a_lack_of_descriptors(monkeypatch, caplog):
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    process = ProcessId.of(child.pid)
    pidfd_open, refusals = os.pidfd_open, [errno.EMFILE, errno.ENFILE]

    def scarce(pid):
        if refusals:
            raise OSError(refusals.pop(), "Too many open files")
        return pidfd_open(pid)

    monkeypatch.setattr(seaweed, "LOOK_INTERVAL_S", 0.01)
    monkeypatch.setattr(seaweed.os, "pidfd_open", scarce)
    waiting = asyncio.create_task(seaweed._ended(process))
    try:
        while refusals:
            await asyncio.sleep(0.01)
            assert not waiting.done()
    finally:
        child.kill()
        child.wait()
    await asyncio.wait_for(waiting, 20)
    assert caplog.text.count("cannot be watched for now") == 1


async def test_the_watch_goes_on_after_an_error_that_nobody_foresaw(tmp_path, monkeypatch, caplog):
    store = EmbeddedStore(tmp_path, credentials=Credentials(access_key_id="key", secret_access_key="secret"))
    begun = []

    async def adopt():
        return True

    async def watch():
        begun.append(None)
        if len(begun) == 1:
            raise OSError(errno.EIO, "Input/output error")
        await asyncio.Event().wait()

    async def end():
        pass

    monkeypatch.setattr(background_tasks, "FIRST_PAUSE_S", 0.001)
    for name, replacement in {"_adopt": adopt, "_watch": watch, "_end_process": end}.items():
        monkeypatch.setattr(store, name, replacement)
    store._record = StoreRecord(ports={"s3": 1})
    await store.start()
    async with asyncio.timeout(20):
        while len(begun) < 2:
            await asyncio.sleep(0.01)
    await store.stop()
    assert "seaweed-watch ended with an error" in caplog.text
