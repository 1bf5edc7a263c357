"""The embedded object store's restarts, without a store's process."""

import asyncio

import pytest

from clary.base.errors import ObjectStoreError
from clary.contract.launch_plan import Credentials
from clary.control.objects import seaweed
from clary.control.objects.seaweed import FIRST_BACKOFF_S, STEADY_S, EmbeddedStore


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
