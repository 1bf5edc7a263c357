"""Short programs within a limit: their output, their end, and programs that no signal ends."""

import logging
import os
import resource
import signal
import subprocess
import sys
import threading
import time

import pytest

from clary.base.limited_runs import OutputTooLong, RunTooLong, collect_abandoned, end_process, run_limited
from clary.testing.fake_hanging_program import FAKE_PID, FakeHangingProgram


@pytest.fixture
def hanging(monkeypatch):
    monkeypatch.setattr(FakeHangingProgram, "started", started := [])
    monkeypatch.setattr(subprocess, "Popen", FakeHangingProgram)
    yield started
    for program in started:
        program.may_end = True
    collect_abandoned()


def python(code):
    return [sys.executable, "-I", "-S", "-c", code]


def test_a_program_gets_its_input_variables_and_folder_and_its_output_is_returned(tmp_path):
    code = "import os, sys; print(os.getcwd(), os.environ['A'], sys.stdin.read()); sys.stderr.write('no'); sys.exit(3)"
    done = run_limited(python(code), limit_s=30, given=b"text", variables={"A": "1"}, folder=str(tmp_path))
    assert (done.code, done.output, done.errors) == (3, f"{tmp_path} 1 text\n", "no")


def test_output_that_is_no_text_is_replaced():
    done = run_limited(python("import os; os.write(1, b'a\\xffb')"), limit_s=30)
    assert done.output == "a\N{REPLACEMENT CHARACTER}b"


def test_a_program_without_input_reads_an_empty_one():
    assert run_limited(python("import sys; print(sys.stdin.read())"), limit_s=30).output == "\n"


def test_a_program_that_is_missing_is_an_error_of_the_system():
    with pytest.raises(FileNotFoundError):
        run_limited(["/no/such/program"], limit_s=1)


def test_a_late_program_is_killed_and_its_name_is_told():
    began_s = time.monotonic()
    with pytest.raises(RunTooLong) as caught:
        run_limited(["sleep", "60"], limit_s=0.2)
    assert str(caught.value) == "sleep did not end within 0.2 s"
    assert caught.value.hanging_pid is None
    assert time.monotonic() - began_s < 20
    assert collect_abandoned() == ()


def test_a_killed_program_whose_child_holds_its_output_is_not_waited_for():
    with pytest.raises(RunTooLong):
        run_limited(["sh", "-c", "sleep 3 & exec sleep 60"], limit_s=0.2)


def test_a_program_is_killed_if_its_caller_is_interrupted(monkeypatch):
    started = []
    popen = subprocess.Popen

    def noting(*arguments, **options):
        started.append(popen(*arguments, **options))
        threading.Timer(0.2, signal.pthread_kill, (threading.get_ident(), signal.SIGINT)).start()
        return started[0]

    monkeypatch.setattr(subprocess, "Popen", noting)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in what a shell runs in the background
    try:
        with pytest.raises(KeyboardInterrupt):
            run_limited(["sleep", "60"], limit_s=60)
    finally:
        signal.signal(signal.SIGINT, before)
    assert started[0].returncode == -9


@pytest.mark.parametrize("stream", [1, 2])
def test_a_program_that_prints_too_much_is_killed_and_its_name_and_the_limit_are_told(stream):
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    code = f"import os\nwhile True: os.write({stream}, b'x' * 65536)"
    with pytest.raises(OutputTooLong, match=r"python\S* printed more than 1048576 bytes, and was ended") as caught:
        run_limited(python(code), limit_s=60, most_bytes=1 << 20)
    assert isinstance(caught.value, OSError), "callers treat it as a program that cannot be used"
    assert caught.value.strerror in str(caught.value)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib < 64 * 1024
    assert collect_abandoned() == ()


def test_every_program_has_a_limit_on_its_output():
    with pytest.raises(OutputTooLong, match="yes printed more than"):
        run_limited(["yes"], limit_s=60)


def test_both_streams_and_the_input_are_served_at_once():
    code = (
        "import os, sys\n"
        "os.write(2, b'e' * 300_000)\n"
        "os.write(1, b'o' * 300_000)\n"
        "sys.exit(len(sys.stdin.buffer.read()) // 100_000)"
    )
    done = run_limited(python(code), limit_s=60, given=b"i" * 300_000)
    assert (done.code, len(done.output), len(done.errors)) == (3, 300_000, 300_000)


def test_a_program_that_does_not_read_its_input_ends_as_usual():
    assert run_limited(python("import os; os.close(0); print('ready')"), limit_s=60, given=b"i" * 300_000).code == 0


def test_a_program_that_takes_more_memory_than_its_limit_fails():
    taking = python("kept = bytearray(1 << 30); print(len(kept))")
    done = run_limited(taking, limit_s=60, memory_bytes=256 << 20)
    assert done.code != 0
    assert "MemoryError" in done.errors
    assert run_limited(python("print(1)"), limit_s=60, memory_bytes=256 << 20).output == "1\n"


def test_a_program_that_hangs_in_the_kernel_is_abandoned_and_collected_once_it_ends(hanging, caplog):
    with caplog.at_level(logging.WARNING), pytest.raises(RunTooLong) as caught:
        run_limited(["/usr/bin/nvidia-smi", "-q"], limit_s=0.1)
    words = f"nvidia-smi did not end within 0.1 s, and process {FAKE_PID} hangs in the kernel"
    assert (caught.value.hanging_pid, str(caught.value)) == (FAKE_PID, words)
    assert f"nvidia-smi (process {FAKE_PID}) does not end after SIGKILL" in caplog.text
    assert hanging[0].was_killed
    assert hanging[0].stdout.closed
    assert collect_abandoned() == (FAKE_PID,)
    hanging[0].may_end = True
    assert collect_abandoned() == ()


def test_ending_a_process_closes_its_pipes_and_collects_it():
    process = subprocess.Popen(["sleep", "60"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert end_process(process)
    assert (process.returncode, process.stdin.closed, process.stdout.closed) == (-9, True, True)
    assert end_process(process), "a second call does nothing"
    assert not os.path.exists(f"/proc/{process.pid}")
