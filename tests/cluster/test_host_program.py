"""Programs on hosts: output, exits and signals; as root, in a user namespace and as plain processes."""

import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from host_world import (
    DEADLINE_S,
    PATH,
    PYTHON,
    eventually,
    pids_with,
    process,
    python,
    shell,
    unique_sleep,
)
from host_worlds import EVERY_MODE, world_of

import clary
from clary.agent.host.sandbox import Bind
from clary.base.errors import AgentError
from clary.base.processes import read_entry, read_process_list

COUNT_TERMS = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: os.write(1, b"caught by %d\\n" % os.getpid()))
for _ in range({children}):
    if os.fork() == 0:
        break
os.write(1, b"waiting\\n")
while True:
    time.sleep(60)
"""


world = world_of(EVERY_MODE)


def test_output_of_both_streams_keeps_its_order(world):
    program, listener = world.start(shell("echo one; echo two >&2; echo three; exit 3"))
    result = program.wait(DEADLINE_S)
    assert listener.text() == "one\ntwo\nthree\n"
    assert [(end.exit_code, end.signal, end.is_consequence) for end in result.exits] == [(3, None, False)]


def test_an_exit_record_holds_rank_pid_and_time(world):
    before = datetime.now(UTC) - timedelta(seconds=1)
    program, _ = world.start(shell("exec sleep 0.05", rank=5, local_rank=1))
    (end,) = program.wait(DEADLINE_S).exits
    assert (end.rank, end.local_rank) == (5, 1)
    assert before < end.ended_at < datetime.now(UTC) + timedelta(seconds=1)
    assert end.pid > 1


def test_pid_of_an_exit_is_that_of_the_machines_namespace(world):
    marker = unique_sleep()
    program, _ = world.start(shell(f"exec {marker}"))
    eventually(lambda: pids_with(marker.split()[1]))
    (pid,) = pids_with(marker.split()[1])
    program.kill()
    assert program.exits()[0].pid == pid


def test_death_by_signal_is_not_an_exit_code(world):
    program, _ = world.start(shell("kill -SEGV $$"))
    (end,) = program.wait(DEADLINE_S).exits
    assert (end.exit_code, end.signal, end.is_consequence) == (None, signal.SIGSEGV, False)
    assert program.first_failure() == end


def test_wait_returns_none_while_a_process_runs(world):
    program, _ = world.start(shell("exit 0"), shell("exec sleep 60"))
    assert program.wait(0.2) is None
    assert program.running() >= 1


def test_first_failure_is_the_earliest_end_that_is_no_success(world):
    program, listener = world.start(
        shell("exit 0"), shell("read x < /dev/null; exit 4", rank=1), shell("sleep 0.3; exit 5", rank=2)
    )
    assert program.wait(DEADLINE_S) is not None
    assert program.first_failure().rank == 1
    assert [end.exit_code for end in program.exits()][-1] == 5
    assert program.running() == 0
    assert listener.text(1) == ""


def test_program_gets_its_own_environment_and_nothing_else(world):
    program, listener = world.start(process("/usr/bin/env", environment={"SM_HP": 'it\'s "q"\nü'}))
    assert program.wait(DEADLINE_S) is not None
    assert listener.text() == f'PATH={PATH}\nSM_HP=it\'s "q"\nü\n'


def test_standard_input_is_empty_and_no_descriptor_leaks_in(world):
    program, listener = world.start(shell("wc -c; ls /proc/self/fd"))
    assert program.wait(DEADLINE_S) is not None
    assert listener.text().split() == ["0", "0", "1", "2", "3"]  # 3: ls reads the folder


def test_signals_are_at_their_defaults(world):
    program, listener = world.start(shell("grep -E 'Sig(Blk|Ign)' /proc/self/status"))
    assert program.wait(DEADLINE_S) is not None
    blocked, ignored = (int(mask, 16) for mask in listener.text().split()[1::2])
    # The C library reserves signals 32 and 33, so that their inherited dispositions cannot be reset.
    assert (blocked, ignored & ~(3 << 31)) == (0, 0)


@pytest.mark.long(10)
@pytest.mark.parametrize(
    ("argv", "folder", "exit_code", "words"),
    [
        (("no-such-command",), "/", 127, "no-such-command: command not found in PATH="),
        (("/no/such/file",), "/", 127, "/no/such/file: no such file"),
        (("/etc/passwd",), "/", 126, "/etc/passwd: Permission denied"),
        (("/usr",), "/", 126, "/usr: Permission denied"),
        (("/bin/true",), "/no/folder", 127, "working folder /no/folder: No such file"),
        (("/bin/true",), "/etc/passwd", 127, "working folder /etc/passwd: Not a directory"),
        (("/bin/true", "a\0b"), "/", 126, "embedded null byte"),
    ],
)
def test_a_command_that_cannot_be_executed_gives_an_error_and_a_shells_exit_code(world, argv, folder, exit_code, words):
    program, listener = world.start(process(*argv, working_folder=folder))
    result = program.wait(DEADLINE_S)
    assert result.exits[0].exit_code == exit_code
    assert words in listener.text()
    assert words in result.notes[0]


def test_script_without_interpreter_is_explained(world):
    code = world.folder("code")
    sandbox = world.sandbox(binds=(Bind(source=str(code), target=str(code), read_only=True),))
    script = code / "train.sh"
    script.write_text("\n#!/bin/sh\necho no\n")
    script.chmod(0o755)
    program, listener = world.start(process(str(script)), sandbox=sandbox)
    assert program.wait(DEADLINE_S).exits[0].exit_code == 126
    assert "neither a binary's header nor '#!'" in listener.text()


def test_variable_too_large_for_the_kernel_is_named(world):
    program, listener = world.start(process("/bin/true", environment={"SM_HPS": "x" * 200_000}))
    assert program.wait(DEADLINE_S).exits[0].exit_code == 126
    assert "SM_HPS with 200000 characters" in listener.text()


def test_large_environments_reach_the_program(world):
    environment = {f"SM_HP_{number}": "x" * 100_000 for number in range(10)}
    program, listener = world.start(process("/usr/bin/env", environment=environment))
    assert program.wait(DEADLINE_S) is not None
    program.close()
    assert len(listener.text()) > 1_000_000


def test_sigterm_reaches_every_process_exactly_once(world):
    program, listener = world.start(
        python(COUNT_TERMS.format(children=4)), python(COUNT_TERMS.format(children=0)), shell("exec sleep 600")
    )
    listener.wait_for("waiting", times=5)
    listener.wait_for("waiting", index=1)
    assert program.signal_all(signal.SIGTERM) == 7
    listener.wait_for("caught", times=5)
    listener.wait_for("caught", index=1)
    eventually(lambda: program.running() == 2)
    assert program.signal_all(signal.SIGCONT) == 6  # sleep has ended, the other processes have handled the signal
    program.kill()
    program.close()
    lines = [line for index in (0, 1) for line in listener.text(index).splitlines() if line.startswith("caught")]
    assert len(lines) == len(set(lines)) == 6


DRIVER = """
import subprocess, sys
rank = subprocess.Popen([sys.executable, "-u", "-c", {rank!r}], stdout=subprocess.PIPE)
for line in rank.stdout:
    sys.stdout.write("driver passes on: " + line.decode())
    sys.stdout.flush()
print("driver: rank ended with", rank.wait(), flush=True)
while True:
    input_is_over = sys.stdin.read()
    import time; time.sleep(60)
"""
SAVING_RANK = """
import signal, time, sys
def save(*_):
    time.sleep(0.5)
    print("saved", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
print("on", flush=True)
while True:
    time.sleep(60)
"""


def test_a_driver_without_a_handler_forwards_the_last_output_of_its_rank(world):
    program, listener = world.start(python(DRIVER.format(rank=SAVING_RANK)))
    listener.wait_for("driver passes on: on")
    assert program.signal_all(signal.SIGTERM) == 2
    listener.wait_for("driver passes on: saved")
    listener.wait_for("driver: rank ended with 0")
    (end,) = program.wait(DEADLINE_S).exits
    assert (end.signal, end.is_consequence) == (signal.SIGTERM, True)


def test_tee_forwards_the_last_output_of_the_program_that_writes_to_it(world):
    program, listener = world.start(shell(f"{PYTHON} -u -c '{SAVING_RANK}' | tee /dev/null"))
    listener.wait_for("on")
    program.signal_all(signal.SIGTERM)
    listener.wait_for("saved")
    eventually(lambda: program.signal_all(0) == 0)


def test_a_multiprocessing_pool_ends_soon_after_sigterm_with_its_workers(world):
    script = "import multiprocessing as m, time; m.set_start_method('fork')\np = m.Pool(2)\nprint('on', flush=True)\n"
    program, listener = world.start(python(script + "time.sleep(600)"))
    listener.wait_for("on")
    began = time.monotonic()
    program.signal_all(signal.SIGTERM)
    eventually(lambda: program.signal_all(0) == 0)
    print(f"a pool was gone {time.monotonic() - began:.2f} s after SIGTERM")


def test_processes_alive_at_sigterm_count_as_ended_by_the_agent(world):
    program, listener = world.start(shell("exit 9"), shell("trap 'exit 7' TERM; echo on; while :; do sleep 0.01; done"))
    listener.wait_for("on", index=1)
    eventually(lambda: program.running() == 1)
    program.signal_all(signal.SIGTERM)
    result = program.wait(DEADLINE_S)
    assert [(end.exit_code, end.is_consequence) for end in result.exits] == [(9, False), (7, True)]
    assert program.first_failure().exit_code == 9


def test_a_process_already_exiting_at_sigterm_does_not_count_as_ended_by_the_agent(world):
    # A unique name: a process that another test left takes as long to vanish.
    held = f"held_{uuid.uuid4().hex}"
    holding = f"{held} = bytearray(700_000_000)\nprint('on', flush=True)\nimport time\ntime.sleep(600)"
    program, listener = world.start(python(holding), shell("exec sleep 600"))
    listener.wait_for("on")
    (pid,) = [pid for pid in pids_with(held) if read_entry(pid).parent != os.getpid()]
    os.kill(pid, signal.SIGKILL)
    # The kernel frees its memory page by page, so that its exit takes a while.
    eventually(lambda: (entry := read_entry(pid)) is None or entry.is_exiting or entry.has_ended)
    program.signal_all(signal.SIGTERM)
    result = program.wait(DEADLINE_S)
    assert [(end.signal, end.is_consequence) for end in result.exits] == [(9, False), (15, True)]


def test_an_end_after_a_signal_other_than_sigterm_is_no_consequence(world):
    program, listener = world.start(shell("trap 'exit 7' USR1; echo on; while :; do sleep 0.01; done"))
    listener.wait_for("on")
    assert program.signal_all(signal.SIGUSR1) >= 1
    assert program.wait(DEADLINE_S).exits[0].is_consequence is False


def test_signal_zero_counts_processes_without_disturbing_them(world):
    program, listener = world.start(shell("sleep 600 & sleep 600 & echo on; wait"))
    listener.wait_for("on")
    assert [program.signal_all(0) for _ in range(2)] == [3, 3]
    assert program.wait(0.1) is None


def test_kill_ends_processes_that_ignore_sigterm(world):
    program, listener = world.start(shell("trap '' TERM; echo on; while :; do sleep 1; done"))
    listener.wait_for("on")
    assert program.signal_all(signal.SIGTERM) >= 1
    assert program.wait(0.3) is None
    program.kill()
    (end,) = program.wait(0).exits
    assert (end.exit_code, end.signal, end.is_consequence) == (None, signal.SIGKILL, True)
    assert program.first_failure() is None


def test_stopped_processes_are_killed_too(world):
    program, listener = world.start(shell("echo on; kill -STOP $$"))
    listener.wait_for("on")
    program.kill()
    assert program.running() == 0


def test_signals_after_the_end_reach_no_process(world):
    program, _ = world.start(shell("exit 0"))
    assert program.wait(DEADLINE_S) is not None
    assert program.signal_all(signal.SIGTERM) == 0
    program.kill()
    program.close()
    assert program.signal_all(signal.SIGTERM) == 0
    program.close()


def test_daemons_do_not_outlive_the_program(world):
    sleep = unique_sleep()
    program, _ = world.start(shell(f"(setsid {sleep} >/dev/null 2>&1 &) ; (setsid {sleep} &) ; exit 0"))
    assert program.wait(DEADLINE_S).exits[0].exit_code == 0
    eventually(lambda: len(pids_with(sleep.split()[1])) == 2)
    program.close()
    assert pids_with(sleep.split()[1]) == []


def test_a_descendant_that_holds_the_pipe_delays_neither_wait_nor_output(world):
    program, listener = world.start(shell("sleep 3600 & echo last words"))
    assert program.wait(DEADLINE_S) is not None
    assert listener.text() == "last words\n"


def test_a_program_that_forks_without_end_is_killed(world):
    sleep = unique_sleep()
    script = f"n=0; while [ $n -lt 300 ]; do {sleep} & n=$((n+1)); done; echo all; while :; do (sleep 0.01 &) ; done"
    program, listener = world.start(shell(script))
    listener.wait_for("all")
    program.kill()
    program.close()
    assert pids_with(sleep.split()[1]) == []


def test_a_thousand_short_processes_leave_no_zombie(world):
    # Each is orphaned, so that the host's first process must reap it.
    program, listener = world.start(
        shell("i=0; while [ $i -lt 1000 ]; do (/bin/true &) ; i=$((i+1)); done; echo all; exec sleep 600")
    )
    listener.wait_for("all")

    def orphans():
        return [entry for entry in read_process_list().values() if entry.parent == program.init_pid]

    eventually(lambda: len(orphans()) == 1)
    assert program.signal_all(signal.SIGCONT) == 1


def test_many_programs_leave_no_files_or_processes(world):
    sandbox = world.sandbox()
    world.run("true", sandbox=sandbox)
    before = sorted(os.listdir("/proc/self/fd")), threading.active_count()
    for _ in range(5):
        program, _ = world.start(shell("exit 0"), shell("exec sleep 600"), sandbox=sandbox)
        program.close()
    assert (sorted(os.listdir("/proc/self/fd")), threading.active_count()) == before
    assert os.listdir(sandbox.host_folder) == []
    assert Path(f"/proc/{program.init_pid}").exists() is False


def test_program_dies_with_its_agent(world):
    sleep = unique_sleep()
    sandbox = world.sandbox()
    agent = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys, time\n"
            "from clary.agent.host.program import Program\n"
            "from clary.agent.host.sandbox import *\n"
            "from clary.contract.launch_plan import *\n"
            "sandbox, process = eval(sys.argv[1])\n"
            "program = Program.start([process], sandbox, on_output=lambda *_: None)\n"
            "print(program.init_pid, flush=True)\n"
            "time.sleep(600)\n",
            repr((sandbox, shell(f"trap '' TERM HUP; (setsid {sleep} &) ; {sleep}"))).replace(
                repr(sandbox.isolation), str(sandbox.isolation.__class__.__name__) + "." + sandbox.isolation.name
            ),
        ],
        stdout=subprocess.PIPE,
        env={"PYTHONPATH": str(Path(clary.__file__).parents[1]), "PATH": PATH},
    )
    try:
        init_pid = int(agent.stdout.readline())
        eventually(lambda: len(pids_with(sleep.split()[1])) >= 2)
    finally:
        agent.kill()
        agent.wait()
        agent.stdout.close()
    eventually(lambda: not pids_with(sleep.split()[1]) and not Path(f"/proc/{init_pid}").exists())
    eventually(lambda: os.listdir(sandbox.host_folder) == [])
    world.expect_no_cgroup_of(sandbox)


def test_death_of_the_first_process_ends_the_program_and_is_reported(world):
    sleep = unique_sleep()
    program, _ = world.start(shell(f"(setsid {sleep} &) ; exec {sleep}"))
    eventually(lambda: len(pids_with(sleep.split()[1])) == 2)
    os.kill(program.init_pid, signal.SIGKILL)
    result = program.wait(DEADLINE_S)
    assert (result.exits[0].signal, result.exits[0].is_consequence) == (signal.SIGKILL, True)
    assert "first process of algo-1 ended before its program did" in result.lost_why
    if world.mode != "plain" or os.geteuid() == 0:  # without a cgroup an orphaned daemon is not found
        program.close()
        assert pids_with(sleep.split()[1]) == []
    else:
        for pid in pids_with(sleep.split()[1]):
            os.kill(pid, signal.SIGKILL)


def test_a_program_cannot_end_its_first_process_by_term_int_or_hup(world):
    kills = "; ".join(f"kill -{name} $PPID" for name in ("TERM", "INT", "HUP"))
    program, listener = world.start(shell(f"{kills}; echo alive; exit 0"))
    result = program.wait(DEADLINE_S)
    *refusals, last = filter(None, listener.text().splitlines())
    assert last == "alive"
    # As real root the program is another user and may not send signals; in other modes the first process ignores them.
    assert len(refusals) == (3 if world.mode == "root" else 0), refusals
    assert all("Operation not permitted" in refusal for refusal in refusals)
    assert (result.exits[0].exit_code, result.notes) == (0, ())


def test_two_programs_do_not_touch_each_other(world):
    first, _ = world.start(shell("exec sleep 600"))
    second, listener = world.start(shell("trap 'echo hit; exit 1' TERM; echo on; while :; do sleep 0.01; done"))
    listener.wait_for("on")
    first.signal_all(signal.SIGTERM)
    first.close()
    assert second.wait(0.3) is None
    assert listener.text() == "on\n"


def test_a_failing_listener_blocks_no_program(world):
    class FailingListener:
        def __call__(self, index, data):
            raise OSError("disk full")

    program, _ = world.start(shell("head -c 1000000 /dev/zero; exit 0"), listener=FailingListener())
    result = program.wait(DEADLINE_S)
    assert result.exits[0].exit_code == 0
    [note] = result.notes
    assert note.startswith("Output was lost, because its listener failed: OSError: disk full.")


def test_a_missing_ml_folder_is_refused_by_name(world):
    sandbox = world.sandbox()
    os.rmdir(sandbox.ml_folder)
    with pytest.raises(AgentError, match=sandbox.ml_folder):
        world.start(shell("true"), sandbox=sandbox)
    assert os.listdir(sandbox.host_folder) == []


def test_a_program_without_processes_is_refused(world):
    with pytest.raises(ValueError, match="at least one process"):
        world.start()
