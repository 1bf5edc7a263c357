"""A separate log store for every test."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from log_lines import CREATED, STREAM, FakeClock

from clary.control.store.log_files import log_index
from clary.control.store.log_files.logs import LogStore


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def logs(tmp_path: Path, clock: FakeClock) -> AsyncIterator[LogStore]:
    logs = LogStore(tmp_path / "logs", clock=clock)
    await logs.create_stream(STREAM, CREATED)
    yield logs
    await logs.close()


@pytest.fixture
def short_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of three lines, so that a few lines make many blocks."""
    monkeypatch.setattr(log_index, "BLOCK_RECORDS", 3)
