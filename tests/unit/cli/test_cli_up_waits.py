"""`clary up` waits for a service that shows activity, prints its last log line, and ends a silent service."""

import argparse
import signal
import subprocess
import sys
import time

import pytest

from clary.base.errors import ClaryError
from clary.cli import service_start, up
from clary.control.objects.start_patience import LONGEST_START_S

# A service with a slow object store: it logs, and writes its address when it is ready.
SLOW = """
import sys, time
from pathlib import Path
for second in range(int(sys.argv[2])):
    print("INFO the object store does not serve yet:", second, flush=True)
    time.sleep(0.3)
Path(sys.argv[1]).touch()
time.sleep(60)
"""
SILENT = "import time; time.sleep(60)"
STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('here', flush=True); time.sleep(60)"
)


@pytest.fixture
def started(tmp_path):
    """Return a function that starts programs in place of the service; end the programs that a test leaves."""
    processes = []

    def start(code, *arguments):
        with (tmp_path / "service.log").open("ab") as log:
            process = subprocess.Popen([sys.executable, "-c", code, *arguments], stdout=log, stderr=log)
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.kill()
        process.wait()


def wait(process, tmp_path, *, said=None):
    ready = tmp_path / "ready"
    say = said.append if said is not None else lambda _: None
    return service_start.wait_until_ready(
        process, log=tmp_path / "service.log", find_ready=lambda: ready if ready.exists() else None, say=say
    )


def test_a_start_that_logs_is_waited_for_and_its_last_line_is_printed(tmp_path, started, monkeypatch):
    monkeypatch.setattr(service_start, "SILENCE_S", 2.0)
    monkeypatch.setattr(service_start, "NOTE_INTERVAL_S", 0.5)
    said = []
    process = started(SLOW, str(tmp_path / "ready"), "15")  # more than twice the allowed silence
    assert wait(process, tmp_path, said=said) == tmp_path / "ready"
    assert process.poll() is None
    assert any("it said last: INFO the object store does not serve yet: " in sentence for sentence in said), said


def test_a_line_of_an_earlier_service_is_not_told_as_the_last_one_of_this(tmp_path, started, monkeypatch):
    monkeypatch.setattr(service_start, "NOTE_INTERVAL_S", 0.2)
    (tmp_path / "service.log").write_text("INFO the service has stopped\n")
    said = []
    process = started(
        f"import pathlib, time; time.sleep(1); pathlib.Path({str(tmp_path / 'ready')!r}).touch(); {SILENT}"
    )
    wait(process, tmp_path, said=said)
    assert said
    assert {sentence.rpartition("; ")[2] for sentence in said} == {"it said last: nothing"}


def test_a_silent_start_is_ended_after_the_limit(tmp_path, started, monkeypatch):
    monkeypatch.setattr(service_start, "SILENCE_S", 1.0)
    process = started(SILENT)
    with pytest.raises(ClaryError, match=r"did not answer within \d+ s and is ended: it has neither"):
        wait(process, tmp_path)
    assert process.poll() is not None


def test_an_active_start_is_ended_at_the_longest_wait(tmp_path, started, monkeypatch):
    monkeypatch.setattr(service_start, "LONGEST_WAIT_S", 1.5)
    process = started("while True: pass")
    with pytest.raises(ClaryError, match=r"it is busy, but 1\.5 s have passed"):
        wait(process, tmp_path)
    assert process.poll() is not None


def test_a_service_that_ignores_sigterm_is_killed_and_reported(tmp_path, started, monkeypatch):
    monkeypatch.setattr(service_start, "SILENCE_S", 1.0)
    monkeypatch.setattr(service_start, "END_GRACE_S", 0.3)
    process = started(STUBBORN)
    while not (tmp_path / "service.log").read_text():
        time.sleep(0.02)
    said = []
    with pytest.raises(ClaryError, match="neither computed nor logged"):
        wait(process, tmp_path, said=said)
    assert process.poll() is not None
    assert said[-1] == "the service did not end within 0 s and is killed"


def test_a_service_that_may_have_jobs_is_told_to_leave_them(tmp_path, started):
    code = "import signal, sys, time; signal.signal(signal.SIGUSR1, lambda *_: sys.exit(7)); print(flush=True); "
    process = started(f"{code}time.sleep(60)")
    log = tmp_path / "service.log"

    def interrupt():
        if log.read_text():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        service_start.wait_until_ready(
            process, log=log, find_ready=interrupt, say=lambda _: None, ending=signal.SIGUSR1
        )
    assert process.returncode == 7


def test_the_waits_exceed_the_time_to_restart_a_dead_object_store():
    assert service_start.LONGEST_WAIT_S > 2 * LONGEST_START_S
    assert service_start.SILENCE_S > 30.0 + 10.0  # the allowed silence of the store, plus its grace period


def test_up_prints_the_end_of_the_log_of_a_service_that_ended(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("CLARY_HOME", str(tmp_path))
    ending = [sys.executable, "-c", "import sys; print('the port is taken'); sys.exit(3)"]
    monkeypatch.setattr(up, "_command", lambda _: ending)
    options = argparse.Namespace(foreground=False, new_database=False, new_keys=False, json=False, engine=None)
    with pytest.raises(ClaryError, match=r"ended after .* s with exit code 3; end of .*service\.log:\n  the port"):
        up.run(options)
    monkeypatch.setattr(up, "low_limits", lambda _: ["no file may be larger than 9 bytes"])
    with pytest.raises(ClaryError, match=r"exit code 3; no file may be larger than 9 bytes; end of "):
        up.run(options)
