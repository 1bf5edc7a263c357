"""Retention of logs goes on after errors of the store and of its files."""

import asyncio
from typing import Any

import pytest

from clary.base.errors import StoreError
from clary.control.reconcile import log_cleaning
from clary.control.reconcile.hub import JobHub
from clary.control.reconcile.log_cleaning import keep_removing


@pytest.mark.parametrize("error", [StoreError("the file is damaged"), OSError(5, "Input/output error")])
async def test_streams_are_removed_in_the_round_after_one_that_failed(
    error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(log_cleaning, "INTERVAL_S", 0.001)
    has_removed = asyncio.Event()
    failures = [error]

    class Logs:
        async def remove_expired(self, _is_live: Any) -> int:
            if failures:
                raise failures.pop()
            has_removed.set()
            return 0

    task = asyncio.create_task(keep_removing(Logs(), JobHub.__new__(JobHub)))
    try:
        await asyncio.wait_for(has_removed.wait(), 10)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert "stay for now" in caplog.text
