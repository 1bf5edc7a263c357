"""py-spy's output is parsed as it is printed; broken, hostile or missing output becomes an error message."""

import json
import os
import stat
import subprocess
import sys
import time

import pytest

from clary.agent.autopsy import stacks
from clary.contract.stack_dumps import MAX_FRAMES, MAX_THREADS, Frame


def thread(*frames, name="MainThread", number=7):
    return {"thread_name": name, "os_thread_id": number, "frames": [frame(*item) for item in frames]}


def frame(name, file, line=1):
    return {"name": name, "filename": f"/usr/lib/{file}", "short_filename": file, "line": line}


def parsed(*threads, pid=7):
    return stacks.parse_stacks(json.dumps(threads).encode(), pid=pid)


def test_calls_are_ordered_from_the_innermost_outwards_with_file_and_line():
    (found,) = parsed(thread(("inner", "train.py", 3), ("<module>", "train.py", 9)))
    assert found.is_main
    assert found.frames == (
        Frame(function="inner", file="train.py", line=3),
        Frame(function="<module>", file="train.py", line=9),
    )


def test_frames_of_launchers_and_of_the_interpreter_are_left_out():
    (found,) = parsed(
        thread(
            ("clock_nanosleep", "libc.so.6", 0),
            ("time_sleep", "libpython3.11.so.1.0", 0),
            ("<module>", "train.py"),
            ("_run_code", "<frozen runpy>"),
            ("main", "clary_rank.py"),
        )
    )
    assert [item.function for item in found.frames] == ["clock_nanosleep", "<module>"]


def test_frames_of_step_hooks_are_left_out_and_our_collectives_name_their_package():
    folder = "/opt/ml/.clary/python/clary/train"
    found = stacks.parse_stacks(
        json.dumps(
            [
                {
                    "thread_name": "MainThread",
                    "os_thread_id": 7,
                    "frames": [
                        {
                            "name": "all_reduce",
                            "filename": f"{folder}/collective/group.py",
                            "short_filename": "train/collective/group.py",
                            "line": 5,
                        },
                        {
                            "name": "_timed_wait.<locals>.wait",
                            "filename": f"{folder}/steps/torch_hooks.py",
                            "short_filename": "train/steps/torch_hooks.py",
                            "line": 184,
                        },
                        frame("<module>", "train.py", 9),
                    ],
                }
            ]
        ).encode(),
        pid=7,
    )
    assert [(item.function, item.file) for item in found[0].frames] == [
        ("all_reduce", "clary/train/collective/group.py"),
        ("<module>", "train.py"),
    ]


def test_threads_and_calls_are_bounded():
    many = [thread(*[("f", "a.py")] * (MAX_FRAMES + 5), name=f"t{number}") for number in range(MAX_THREADS + 5)]
    found = parsed(*many)
    assert len(found) == MAX_THREADS
    assert {len(item.frames) for item in found} == {MAX_FRAMES}


@pytest.mark.parametrize("text", [b"", b"{}", b"[1]", b'[{"frames": [{}]}]', b'[{"frames": null}]', b"\xff"])
def test_invalid_output_is_refused(text):
    with pytest.raises(ValueError, match=r"."):
        stacks.parse_stacks(text, pid=1)


def test_the_message_names_the_innermost_cause_of_a_failure():
    words = "Error: Failed to get stack traces\n\nCaused by:\n    0: outer\n    1: inner\n\nStack backtrace:\n   0: x\n"
    assert stacks.why_not(words) == "py-spy: 1: inner"
    assert stacks.why_not("Error: Failed to find python version from target process\n") == "no Python runs in it"
    assert stacks.why_not("") == "py-spy failed without a message"


def fake_py_spy(tmp_path, body):
    path = tmp_path / "fake-py-spy"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_a_process_that_cannot_be_unwound_is_read_without_native_code(tmp_path):
    program = fake_py_spy(tmp_path, """case "$*" in *--native*) exit 1;; *) echo '[]';; esac""")
    assert stacks.read_stacks(os.getpid(), program=program, limit_s=10) == ((), "")


@pytest.mark.parametrize("states", ["T", "SSD", "St"])
def test_a_process_with_a_thread_that_cannot_be_paused_is_not_paused(tmp_path, monkeypatch, states):
    program = fake_py_spy(tmp_path, """case "$*" in *--nonblocking*) echo '[]';; *) exit 9;; esac""")
    monkeypatch.setattr(stacks, "thread_states", lambda pid: states)
    assert stacks.read_stacks(os.getpid(), program=program, limit_s=10) == ((), "")


def test_after_a_pause_that_timed_out_the_process_is_not_paused_again(tmp_path):
    program = fake_py_spy(
        tmp_path, """case "$*" in *--native*) exec sleep 60;; *--nonb*) echo '[]';; *) exit 9;; esac"""
    )
    assert stacks.read_stacks(os.getpid(), program=program, limit_s=1) == ((), "")


def test_a_py_spy_that_does_not_return_is_ended_at_the_limit(tmp_path):
    found, why = stacks.read_stacks(os.getpid(), program=fake_py_spy(tmp_path, "exec sleep 60"), limit_s=0.2)
    assert found == ()
    assert "did not come back within 0.2 s" in why


def test_a_missing_py_spy_is_reported():
    assert "pip install py-spy" in stacks.read_stacks(os.getpid(), program=None, limit_s=1)[1]


def test_stacks_of_a_real_process_name_its_functions():
    program = stacks.find_py_spy()
    assert program is not None, "py-spy comes with clary[server]"
    script = "import time\ndef waits_here():\n    print('up', flush=True)\n    time.sleep(600)\nwaits_here()\n"
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "up\n"
        end_s = time.monotonic() + 60
        while True:
            time.sleep(0.1)  # time for the process to fall asleep
            found, why = stacks.read_stacks(process.pid, program=program, limit_s=20)
            functions = [item.function for item in found[0].frames] if found else []
            if "waits_here" in functions or time.monotonic() > end_s:
                break
        if "Permission denied" in why and os.geteuid() != 0:
            pytest.skip(f"this user may not look at other processes: {why}")
        assert "waits_here" in functions, why
        assert "<module>" in functions
    finally:
        process.kill()
        process.communicate()


def test_a_py_spy_that_prints_without_end_is_ended(tmp_path):
    found, why = stacks.read_stacks(os.getpid(), program=fake_py_spy(tmp_path, "exec yes"), limit_s=60)
    assert found == ()
    assert why == f"its stacks are too large: py-spy printed more than {stacks.MAX_OUTPUT_BYTES} bytes"


def test_a_process_whose_native_calls_are_too_many_is_read_without_them(tmp_path):
    program = fake_py_spy(tmp_path, """case "$*" in *--native*) exec yes;; *) echo '[]';; esac""")
    assert stacks.read_stacks(os.getpid(), program=program, limit_s=60) == ((), "")


HUGE = """
import sys, threading, time
sys.setrecursionlimit(100_000)
space = {}
name = "f" * 3900
code = f"def {name}(depth, wait):\\n    {name}(depth - 1, wait) if depth else wait()"
exec(compile(code, "/" + "p" * 3900, "exec"), space)
for _ in range(THREADS):
    threading.Thread(target=space[name], args=(DEPTH, threading.Event().wait), daemon=True).start()
time.sleep(1)
print("up", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize(("threads", "depth"), [(8, 300), (64, 900)], ids=["output", "memory"])
def test_a_real_process_with_long_stacks_of_long_names_does_not_fill_the_memory(threads, depth, monkeypatch):
    """The one exceeds the limit on py-spy's output, the other its memory before it prints."""
    monkeypatch.setattr(stacks, "_MEMORY_BYTES", 384 << 20)
    script = HUGE.replace("THREADS", str(threads)).replace("DEPTH", str(depth))
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "up\n"
        found, why = stacks.read_stacks(process.pid, program=stacks.find_py_spy(), limit_s=60)
        if "Permission denied" in why and os.geteuid() != 0:
            pytest.skip(f"this user may not look at other processes: {why}")
        assert found == ()
        assert why.startswith("its stacks are too large: py-spy ")
    finally:
        process.kill()
        process.communicate()
