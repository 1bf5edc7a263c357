"""`horovod.torch` over Clary's collectives: real ranks, every operation, failures, and horovodrun."""

import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest
from horovod_programs import TRAIN_PYTHON, Ranks

from clary.agent.launchers.shim_files import SHIMS_BIN_FOLDER

pytestmark = [pytest.mark.timeout(240), pytest.mark.xdist_group("horovod-torch")]

FOLDER = Path(__file__).parent
CHECKS = FOLDER / "horovod_torch_program.py"
FAILING = FOLDER / "horovod_failing_program.py"
ELASTIC = FOLDER / "horovod_elastic_program.py"


@pytest.mark.long(20)
@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.sweep("size")
def test_every_operation_on_several_ranks(size, tmp_path):
    for ended in Ranks(CHECKS, size, tmp_path).wait(200):
        assert "outcome {}" in ended.output, ended.output[-6000:]
        assert ended.code == 0


@pytest.mark.long(40)
def test_every_operation_on_the_slow_reference_core(tmp_path):
    for ended in Ranks(CHECKS, 2, tmp_path, CLARY_COLLECTIVE_CORE="reference").wait(200):
        assert "outcome {}" in ended.output, ended.output[-6000:]


def test_a_rank_that_is_killed_is_named_at_once(tmp_path):
    begun = time.monotonic()
    first, killed, third = Ranks(FAILING, 3, tmp_path, "killed").wait(100)
    assert killed.code == -signal.SIGKILL
    for ended in (first, third):
        assert ended.code == 3, ended.output
        assert re.search(r"HorovodInternalError rank \d: .*rank 1", ended.output), ended.output
    assert time.monotonic() - begun < 60


def test_an_operation_fails_instead_of_hanging_after_a_rank_has_shut_down(tmp_path):
    first, second = Ranks(FAILING, 2, tmp_path, "leaves").wait(100)
    assert "done" in second.output
    assert second.code == 0
    assert first.code == 3
    assert "HorovodInternalError" in first.output


@pytest.mark.long(60)
def test_a_tensor_missing_on_one_rank_is_named_and_fails_at_the_timeout(tmp_path):
    ranks = Ranks(
        FAILING, 2, tmp_path, "stalls", HOROVOD_STALL_CHECK_TIME_SECONDS="1", HOROVOD_STALL_SHUTDOWN_TIME_SECONDS="8"
    )
    ranks.await_words("'allreduce.forgotten' has waited for more than 1 s", limit_s=60)
    assert "ranks that have not submitted it: 1" in ranks.output(0)
    ranks.await_words("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS allows", limit_s=60)
    ranks.processes[1].kill()
    ranks.wait(60)


def test_the_end_of_a_forked_process_does_not_affect_the_group(tmp_path):
    for ended in Ranks(FAILING, 2, tmp_path, "forks").wait(100):
        assert (ended.code, "done" in ended.output) == (0, True), ended.output


@pytest.mark.long(60)
def test_an_elastic_program_resumes_from_its_last_commit_in_new_processes(tmp_path):
    (tmp_path / "commits").mkdir()
    commits = {"CLARY_HOROVOD_COMMITS": str(tmp_path / "commits")}
    whole = [ended.output for ended in Ranks(ELASTIC, 2, tmp_path, CLARY_HOROVOD_COMMITS="").wait(100)]
    lines = re.findall(r"step .*", whole[0])
    assert len(lines) == 32
    assert "finished 32" in whole[1]
    broken = Ranks(ELASTIC, 2, tmp_path, DIE_AT="20", **commits)
    broken.processes[1].wait(100)
    broken.processes[0].kill()
    broken.wait(30)
    done = re.findall(r"step (\d+)", broken.output(0))
    again = Ranks(ELASTIC, 2, tmp_path, **commits).wait(100)
    resumed = re.findall(r"step .*", again[0].output)
    first = int(resumed[0].split()[1])
    assert 1 < first <= int(done[-1]) + 1
    assert resumed == lines[first - 1 :], "the resumed run differs from the one that was never broken"
    assert "finished 32" in again[0].output


def run_horovodrun(*arguments, limit_s=100, **variables):
    root = FOLDER.parents[2]
    environment = {
        **os.environ,
        "PATH": f"{SHIMS_BIN_FOLDER}:{TRAIN_PYTHON.parent}:{os.environ['PATH']}",
        "PYTHONPATH": f"{root / 'src/clary/compat'}:{root / 'src'}",
        **variables,
    }
    return subprocess.run(
        ["horovodrun", *arguments], env=environment, capture_output=True, text=True, timeout=limit_s, check=False
    )


def test_horovodrun_starts_ranks_and_passes_its_settings_on(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "import os, torch, horovod.torch as hvd\n"
        "hvd.init()\n"
        "print(hvd.rank(), hvd.size(), os.environ['HOROVOD_FUSION_THRESHOLD'], flush=True)\n"
    )
    ended = run_horovodrun("-np", "2", "--fusion-threshold-mb", "3", "--gloo", "python3", str(program))
    assert ended.returncode == 0, ended.stderr
    assert sorted(ended.stdout.splitlines()) == ["[0]<stdout>:0 2 3145728", "[1]<stdout>:1 2 3145728"]
    code = "import os; print(len(os.environ['CLARY_COLLECTIVE_SECRET']))"
    ended = run_horovodrun("-np", "2", "python3", "-c", code)
    assert sorted(ended.stdout.splitlines()) == ["[0]<stdout>:64", "[1]<stdout>:64"]
    folder = tmp_path / "output"
    ended = run_horovodrun("-np", "2", "--output-filename", str(folder), "python3", "-c", "print('here')")
    assert ended.returncode == 0, ended.stderr
    assert (folder / "rank.1" / "stdout").read_text() == "here\n"


def test_horovodrun_ends_all_ranks_with_the_code_of_the_first_that_failed():
    code = "import os, sys, time; sys.exit(7) if os.environ['RANK'] == '1' else time.sleep(60)"
    begun = time.monotonic()
    ended = run_horovodrun("-np", "3", "python3", "-c", code)
    assert ended.returncode == 7
    assert "rank 1 ended with exit code 7" in ended.stderr
    assert time.monotonic() - begun < 30


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-np", "2", "--min-np", "1", "true"], "--min-np: ranks do not come and go"),
        (["-np", "2", "-H", "other:2", "true"], "hosts other are not this machine"),
        (["-np", "3", "-H", "localhost:2", "true"], "-np 3 asks for more ranks than the 2 slots"),
        (["-np", "2"], "no program"),
    ],
)
def test_horovodrun_names_unsupported_options(arguments, words):
    ended = run_horovodrun(*arguments)
    assert ended.returncode == 2
    assert words in ended.stderr


def test_horovod_run_returns_the_results_of_all_ranks(tmp_path):
    program = tmp_path / "caller.py"
    program.write_text(
        "import json, math, horovod\n"
        "print('result', json.dumps(horovod.run(math.hypot, args=(3, 4), np=2)), flush=True)\n"
    )
    root = FOLDER.parents[2]
    environment = {"PYTHONPATH": f"{root / 'src/clary/compat'}:{root / 'src'}", "PATH": "/usr/bin:/bin"}
    ended = subprocess.run(
        [str(TRAIN_PYTHON), str(program)], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout.split("result ")[1]) == [5.0, 5.0]
