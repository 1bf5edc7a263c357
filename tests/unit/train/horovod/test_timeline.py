"""Files of timelines: only regular files are written, and the training continues if a file cannot be written."""

from __future__ import annotations

import json
import os
import resource
import signal
import threading

import pytest

from clary.train.horovod.requests import Verb
from clary.train.horovod.timeline import Timeline


def test_a_timeline_replaces_an_earlier_one(tmp_path):
    path = tmp_path / "timeline.json"
    path.write_text("[" + "1," * 1000)
    timeline = Timeline(str(path), marks_cycles=True)
    timeline.round_begins()
    timeline.negotiated("a", Verb.ALLREDUCE, 0.0)
    timeline.close()
    timeline.close()
    timeline.round_begins()
    assert [event["name"] for event in json.loads(path.read_text())] == [
        "process_name",
        "CYCLE_START",
        "thread_name",
        "NEGOTIATE_ALLREDUCE",
    ]


@pytest.mark.timeout(20)  # opening a pipe without a reader must not block
@pytest.mark.parametrize("has_reader", [False, True])
def test_a_pipe_is_refused_at_once(tmp_path, has_reader):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK) if has_reader else None
    with pytest.raises(OSError, match="a timeline is a regular file") as refusal:
        Timeline(str(path), marks_cycles=False)
    assert str(path) in str(refusal.value)
    if reader is not None:
        os.close(reader)


def test_a_link_is_refused_and_its_target_is_kept(tmp_path):
    victim, path = tmp_path / "victim", tmp_path / "timeline.json"
    victim.write_text("of somebody else")
    path.symlink_to(victim)
    with pytest.raises(OSError, match="not written through a link"):
        Timeline(str(path), marks_cycles=False)
    assert victim.read_text() == "of somebody else"


@pytest.mark.parametrize("path", ["/dev/null", "/dev/zero"])
def test_a_device_is_refused(path):
    with pytest.raises(OSError, match="another kind of file"):
        Timeline(path, marks_cycles=False)


class SlowFile:
    """A file whose first write waits until another thread has closed it, or for a moment.

    Args:
        file: the real file.
    """

    def __init__(self, file) -> None:
        self.file = file
        self.is_written = threading.Event()
        self.is_closed = threading.Event()

    def write(self, text: str) -> None:
        """Write text; the first time, after the wait."""
        if not self.is_written.is_set():
            self.is_written.set()
            self.is_closed.wait(0.3)
        self.file.write(text)

    def close(self) -> None:
        """Close the file."""
        self.file.close()
        self.is_closed.set()


def test_a_timeline_that_another_thread_closes_during_a_write_is_whole(tmp_path):
    timeline = Timeline(str(tmp_path / "timeline.json"), marks_cycles=True)
    slow = SlowFile(timeline._file)
    timeline._file = slow  # type: ignore[assignment]

    def close() -> None:
        slow.is_written.wait(10)
        timeline.close()

    closing = threading.Thread(target=close)
    closing.start()
    timeline.round_begins()
    closing.join(10)
    assert [event["name"] for event in json.loads((tmp_path / "timeline.json").read_text())] == [
        "process_name",
        "CYCLE_START",
    ]


@pytest.fixture
def full_disk():
    """Limit the size of files of this process to 4 KiB."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, handler)


def test_a_full_disk_ends_the_timeline_with_a_log_line_only(tmp_path, caplog, full_disk):
    assert threading.current_thread() is threading.main_thread()
    timeline = Timeline(str(tmp_path / "timeline.json"), marks_cycles=True)
    for _ in range(1000):
        timeline.round_begins()
    timeline.close()
    (told,) = [record.getMessage() for record in caplog.records if "ends here" in record.getMessage()]
    assert "timeline.json ends here, training goes on: File too large" in told
