"""The script that checks a machine with a GPU: what it makes of checks that fail, hang or cannot run."""

import json
import subprocess
import sys
import time

import pytest
from tools.gpu_checks.__main__ import summarize
from tools.gpu_checks.catalogue import ROOT, TESTS, Check, all_checks
from tools.gpu_checks.running import ABSENT, FAILED, NOT_REACHED, PASSED, Result, judge, run_check

TOLD = 'noise\nRESULT {"status": "absent", "words": "no GPU", "numbers": {"a": 1}}\n'


def test_a_check_that_tells_its_result_is_believed():
    found = judge("one", TOLD, 0, limit_s=5, seconds=1)
    assert (found.status, found.words, found.numbers) == (ABSENT, "no GPU", {"a": 1})


@pytest.mark.parametrize(
    ("said", "code", "words"),
    [(TOLD, 1, "ended with 1"), ("nothing", 0, "ended with 0"), (TOLD, None, "did not end within 5 s"), ("", -9, "-9")],
)
def test_a_check_that_ends_otherwise_has_failed_with_its_last_words(said, code, words):
    found = judge("one", said, code, limit_s=5, seconds=5)
    assert found.status == FAILED
    assert words in found.words


def test_a_check_that_hangs_is_ended_with_its_children(tmp_path):
    left = tmp_path / "left"
    child = f"import time; time.sleep(2); open({str(left)!r}, 'w')"
    program = f"import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {child!r}]); time.sleep(60)"
    found = run_check(Check("hang", ("-c", program), 1.0), sys.executable, {}, most_s=30)
    assert found.status == FAILED
    assert found.seconds < 30
    time.sleep(2)
    assert not left.exists()


def test_every_check_names_something_that_is_there():
    names = [check.name for check in all_checks()]
    assert len(set(names)) == len(names)
    programs = {path.name for path in TESTS.glob("*_program.py")}
    assert {
        one.rpartition("/")[2] for check in all_checks() for one in check.arguments if "_program" in one
    } == programs
    for check in all_checks():
        assert (ROOT / (check.arguments[1].replace(".", "/") + ".py")).exists(), check


def test_the_summary_counts_and_quotes_failures():
    results = [
        Result("a", PASSED, numbers={"ms": 2}),
        Result("b", FAILED, "first\nlast | word"),
        Result("c", NOT_REACHED),
    ]
    page = summarize(results, is_rehearsal=True)
    assert "1 failed, 1 not reached, 1 passed" in page
    assert "| b | failed | 0 | last / word |" in page
    assert "first\nlast | word" in page
    assert "no GPU has computed" in page


def test_the_script_reports_what_time_was_too_short_for(tmp_path):
    command = ["sh", str(ROOT / "tools/check_gpu.sh"), str(tmp_path), "--limit-s", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False, cwd=tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "checks.jsonl").read_text().splitlines()]
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(lines) == len(all_checks())
    assert {line["status"] for line in lines} == {NOT_REACHED}
    assert (tmp_path / "summary.md").exists()
