"""Short programs within a limit: their output, their end, and programs that no signal ends."""

import logging
import os
import subprocess
import sys
import time

import pytest

from clary.base.limited_runs import RunTooLong, collect_abandoned, end_process, run_limited
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

    class Interrupted(popen):
        def communicate(self, *arguments, **options):
            started.append(self)
            raise KeyboardInterrupt

    monkeypatch.setattr(subprocess, "Popen", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_limited(["sleep", "60"], limit_s=60)
    assert started[0].returncode == -9


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
