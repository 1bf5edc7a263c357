"""The log store over restarts, crashes, damage, and full disks."""

import asyncio
import os
import stat
from pathlib import Path

import pytest
from log_lines import CREATED, STREAM, lines, numbered, read_on, texts

from clary.base.errors import StoreError
from clary.control.store.errors import StreamDamaged
from clary.control.store.log_files import stream_registry
from clary.control.store.log_files.log_records import StreamHeader
from clary.control.store.log_files.logs import LogStore
from clary.control.store.log_files.stream_file import StreamFile, create_stream_file


async def test_all_lines_are_kept_over_a_restart(logs: LogStore, tmp_path: Path, short_blocks: None) -> None:
    await logs.append(STREAM, 0, numbered(10))
    before = await logs.get_events(STREAM)
    summary = await logs.list_streams()
    await logs.close()
    await logs.close()
    with pytest.raises(StoreError, match="is closed"):
        await logs.append(STREAM, 10, numbered(1, 10))
    again = LogStore(tmp_path / "logs")
    try:
        assert await again.get_events(STREAM) == before
        assert await again.list_streams() == summary
        assert await again.append(STREAM, 8, numbered(5, 8)) == 13
        assert (await read_on(again, None, limit=2))[0] == [str(number) for number in range(13)]
    finally:
        await again.close()


@pytest.mark.parametrize("with_index", [False, True])
async def test_a_torn_last_record_is_truncated_wherever_it_was_torn(tmp_path: Path, with_index: bool) -> None:
    folder = tmp_path / "logs"
    logs = LogStore(folder)
    await logs.create_stream(STREAM, CREATED)
    await logs.append(STREAM, 0, lines("first"))
    await logs.close()
    (path,) = folder.glob("*.log")
    (index_path,) = folder.glob("*.idx")
    index = index_path.read_bytes()
    intact = path.read_bytes()
    logs = LogStore(folder)
    await logs.append(STREAM, 1, lines("second \u4e16"))
    await logs.close()
    whole = path.read_bytes()
    for size in range(len(intact), len(whole)):
        for tail in (b"", b"\0" * (len(whole) - size), b"\0" * 5000):
            path.write_bytes(whole[:size] + tail)
            if tail and whole[:size] + tail == whole:
                continue
            index_path.write_bytes(index) if with_index else index_path.unlink(missing_ok=True)
            logs = LogStore(folder)
            assert await logs.next_sequence(STREAM) == 1
            assert path.read_bytes() == intact
            assert await logs.append(STREAM, 1, lines("again")) == 2
            assert texts((await logs.get_events(STREAM)).events) == ["first", "again"]
            await logs.close()


async def test_damage_in_the_middle_is_reported_and_affects_no_other_stream(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    logs = LogStore(folder)
    for name in ("bad", "good"):
        await logs.create_stream(name, CREATED)
        await logs.append(name, 0, lines("one", "two", "three"))
    await logs.close()
    path, index_path = folder / "bad.log", folder / "bad.idx"
    path.write_bytes(path.read_bytes().replace(b"two", b"twX"))
    for index_is_there in (True, False):
        if not index_is_there:
            index_path.unlink()
        logs = LogStore(folder)
        try:
            with pytest.raises(
                StreamDamaged, match=r"bad\.log is damaged: the record at offset \d+ fails its checksum"
            ):
                await logs.get_events("bad")
            assert texts((await logs.get_events("good")).events) == ["one", "two", "three"]
            assert "good" in [stream.name for stream in (await logs.list_streams()).streams]
        finally:
            await logs.close()
    logs = LogStore(folder)
    try:
        assert texts((await logs.filter_events()).events) == ["one", "two", "three"]
    finally:
        await logs.close()


@pytest.mark.parametrize("garbage", [b"", b"{}", b'{"magic": "CLARYINDEX1"}\n', b"\xff" * 100])
async def test_a_bad_index_is_not_used(tmp_path: Path, garbage: bytes) -> None:
    folder = tmp_path / "logs"
    logs = LogStore(folder)
    await logs.create_stream(STREAM, CREATED)
    await logs.append(STREAM, 0, numbered(5))
    await logs.close()
    (index_path,) = folder.glob("*.idx")
    index_path.write_bytes(garbage)
    (folder / "leftover.tmp").write_bytes(b"x")
    logs = LogStore(folder)
    try:
        assert (await read_on(logs, None))[0] == list("01234")
        assert not (folder / "leftover.tmp").exists()
    finally:
        await logs.close()


@pytest.mark.parametrize("bad", ["unusable", "behind"])
async def test_a_bad_index_is_saved_anew_without_new_lines(tmp_path: Path, bad: str) -> None:
    path = tmp_path / "a.log"
    create_stream_file(path, StreamHeader(stream=STREAM, created_at_ms=0, stream_id=1))
    index_path = path.with_suffix(".idx")
    indexes = []
    for first in (0, 2):
        file = StreamFile(path)
        file.append(first, numbered(2, first), now_ms=0)
        file.close()
        indexes.append(index_path.read_bytes())
    behind, current = indexes
    index_path.write_bytes(b"garbage" if bad == "unusable" else behind)
    StreamFile(path).close()
    assert index_path.read_bytes() == current


async def test_an_index_ahead_of_its_file_is_not_used(tmp_path: Path) -> None:
    """A power cut can lose lines that were never sealed, while the index that counts them survives."""
    folder = tmp_path / "logs"
    logs = LogStore(folder)
    await logs.create_stream(STREAM, CREATED)
    await logs.append(STREAM, 0, numbered(2))
    (path,) = folder.glob("*.log")
    short = path.read_bytes()
    await logs.append(STREAM, 2, numbered(3, 2))
    await logs.close()
    path.write_bytes(short)
    logs = LogStore(folder)
    try:
        assert await logs.next_sequence(STREAM) == 2
    finally:
        await logs.close()


async def test_a_full_disk_rejects_the_whole_batch(
    logs: LogStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await logs.append(STREAM, 0, lines("a"))
    (path,) = (tmp_path / "logs").glob("*.log")
    before = path.read_bytes()
    real = os.pwrite

    def half_then_full(file: int, data: bytes, offset: int) -> int:
        if offset > len(before):
            raise OSError(28, "No space left on device")
        return real(file, bytes(data[:10]), offset)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", half_then_full)
        with pytest.raises(StoreError, match="No space left on device") as full:
            await logs.append(STREAM, 1, lines("b", "c"))
    assert full.value.retryable
    assert path.read_bytes() == before
    assert await logs.append(STREAM, 1, lines("b", "c")) == 3
    assert texts((await logs.get_events(STREAM)).events) == ["a", "b", "c"]


async def test_a_folder_belongs_to_one_store_at_a_time(logs: LogStore, tmp_path: Path) -> None:
    other = LogStore(tmp_path / "logs")
    with pytest.raises(StoreError, match="in use by another process"):
        await other.open()
    await logs.close()
    await other.open()
    assert await other.next_sequence(STREAM) == 0
    await other.close()


async def test_a_folder_that_cannot_be_created_is_an_error_with_a_message() -> None:
    logs = LogStore("/proc/nothing/here")
    with pytest.raises(StoreError, match="cannot use the log folder /proc/nothing/here"):
        await logs.open()
    await logs.close()


async def test_more_streams_than_open_files_all_keep_working(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, short_blocks: None
) -> None:
    monkeypatch.setattr(stream_registry, "MAX_OPEN_FILES", 3)
    logs = LogStore(tmp_path / "logs")
    try:
        names = [f"s{number}" for number in range(12)]
        await asyncio.gather(*(logs.create_stream(name, CREATED) for name in names))
        for first in range(0, 20, 5):
            await asyncio.gather(*(logs.append(name, first, numbered(5, first)) for name in names))
        num_open = sum(
            os.readlink(f"/proc/self/fd/{fd}").startswith(str(tmp_path))
            for fd in os.listdir("/proc/self/fd")
            if os.path.islink(f"/proc/self/fd/{fd}")
        )
        assert num_open <= 3 + 1  # the lock file is open, too
        assert len((await logs.filter_events(prefix="s")).events) == 12 * 20
        assert {stream.next_sequence for stream in (await logs.list_streams()).streams} == {20}
    finally:
        await logs.close()


async def test_a_reader_sees_each_arriving_line_once(logs: LogStore, short_blocks: None) -> None:
    async def write() -> None:
        for first in range(0, 600, 7):
            await logs.append(STREAM, first, numbered(7, first))

    writer = asyncio.create_task(write())
    found: list[str] = []
    token = None
    while not writer.done():
        page = await logs.get_events(STREAM, from_head=True, token=token, limit=5)
        found += texts(page.events)
        token = page.next_forward_token
    await writer
    found += (await read_on(logs, token))[0]
    assert found == [str(number) for number in range(602)]


async def test_sealed_lines_are_forced_to_disk(logs: LogStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forced = []
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda file: (forced.append(os.readlink(f"/proc/self/fd/{file}")), real(file)))
    await logs.append(STREAM, 0, lines("a"))
    assert forced == []
    await logs.seal(STREAM)
    (path,) = (tmp_path / "logs").glob("*.log")
    assert forced == [str(path), str(path.parent)]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("damage", ["emptied", "holed"])
async def test_a_stream_that_a_power_cut_damaged_is_set_aside_for_the_next_attempt(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "logs"
    logs = LogStore(folder)
    await logs.create_stream(STREAM, CREATED)
    await logs.append(STREAM, 0, lines("first", "second", "third"))
    assert await logs.take_up(STREAM) == 3
    await logs.close()
    (path,) = folder.glob("*.log")
    whole = path.read_bytes()
    header = whole.index(b"\n") + 1
    broken = b"" if damage == "emptied" else whole[:header] + b"\0" * 8 + whole[header + 8 :]
    path.write_bytes(broken)
    for index in folder.glob("*.idx"):
        index.unlink()
    logs = LogStore(folder)
    try:
        assert await logs.take_up(STREAM) == 0
        await logs.create_stream(STREAM, CREATED)
        assert await logs.append(STREAM, 0, lines("of the next attempt")) == 1
        assert texts((await logs.get_events(STREAM)).events) == ["of the next attempt"]
        (kept,) = folder.glob("*.damaged")
        assert kept.read_bytes() == broken
        assert f"its lines stay in {kept}" in caplog.text
        assert await logs.take_up("never/created") == 0
    finally:
        await logs.close()
    again = LogStore(folder)
    assert await again.take_up(STREAM) == 1
    await again.close()
