"""The script that checks a machine with a GPU: its treatment of checks that fail, hang or cannot run."""

import json
import shutil
import subprocess
import sys
import time

import pytest
from tools.gpu_checks.__main__ import summarize
from tools.gpu_checks.catalogue import LEAST_S, ROOT, TESTS, Check, all_checks, share_of
from tools.gpu_checks.running import ABSENT, FAILED, NOT_REACHED, PASSED, Result, judge, run_check

TOLD = 'noise\nRESULT {"status": "absent", "words": "no GPU", "numbers": {"a": 1}}\n'


def test_a_result_that_a_check_reports_is_used():
    found = judge("one", TOLD, 0, limit_s=5, seconds=1)
    assert (found.status, found.words, found.numbers) == (ABSENT, "no GPU", {"a": 1})


@pytest.mark.parametrize(
    ("said", "code", "words"),
    [(TOLD, 1, "ended with 1"), ("nothing", 0, "ended with 0"), (TOLD, None, "did not end within 5 s"), ("", -9, "-9")],
)
def test_a_check_without_a_result_has_failed_with_its_last_lines(said, code, words):
    found = judge("one", said, code, limit_s=5, seconds=5)
    assert found.status == FAILED
    assert words in found.words


def test_a_check_that_hangs_is_killed_with_its_children(tmp_path):
    left = tmp_path / "left"
    child = f"import time; time.sleep(2); open({str(left)!r}, 'w')"
    program = f"import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {child!r}]); time.sleep(60)"
    found = run_check(Check("hang", ("-c", program), 1.0), sys.executable, {}, most_s=30)
    assert found.status == FAILED
    assert found.seconds < 30
    time.sleep(2)
    assert not left.exists()


def test_a_check_that_was_given_too_little_time_has_not_failed():
    found = run_check(Check("cut", ("-c", "import time; time.sleep(60)"), 50.0), sys.executable, {}, most_s=1.0)
    assert (found.status, "left it too little time" in found.words) == (NOT_REACHED, True)


def played(hanging, *, limit_s=530.0):
    """Simulate all checks: hanging ones use up their time, the others ten seconds; return the time of each."""
    checks, left_s, given = all_checks(), limit_s, {}
    for number, check in enumerate(checks, start=1):
        given[check.name] = share_of(check, checks[number:], left_s=left_s)
        left_s -= given[check.name] if check.name in hanging else min(10.0, given[check.name])
    assert left_s >= 0
    return given


@pytest.mark.parametrize("num_hanging", [0, 1, 3, 6, 22])
def test_hanging_checks_leave_time_for_the_measurements_and_for_similar_checks(num_hanging):
    names = [check.name for check in all_checks()]
    measured = [name for name in names if name.startswith("measure ")]
    given = played(names[2 : 2 + num_hanging])
    assert len(measured) == 5
    assert all(given[name] >= 20 for name in measured), given
    assert given["measure compile"] >= 45
    if num_hanging <= 3:
        assert all(seconds >= LEAST_S for seconds in given.values()), given
    if num_hanging == 0:
        assert all(seconds >= 15 for seconds in given.values()), given
        assert given["build the core"] == 150


def test_every_check_names_an_existing_program():
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


def python_of(folder, name, *, version=(3, 12), cuda=None):
    """Write a command that stands for a Python with torch built for `cuda`; "" means no CUDA, None means no torch."""
    library = folder / f"lib-{name}"
    (library / "torch").mkdir(parents=True)
    text = f"import sys; sys.version_info = {version}; sys.path.insert(0, {str(library)!r})"
    if cuda is None:
        (library / "torch").rmdir()
    else:
        (library / "torch" / "__init__.py").write_text("raise SystemExit('torch was imported')")
        (library / "torch" / "version.py").write_text(f"cuda: Optional[str] = {cuda or None!r}\n")
    # Answers the script's question as such a Python would, and prints which Python was chosen for the checks.
    program = f'''#!/bin/sh
if [ "$1" = -c ]; then exec {sys.executable} -I -S -c "{text}
$2"; fi
echo "taken: {name} $*"
'''
    (folder / name).write_text(program)
    (folder / name).chmod(0o755)


@pytest.mark.parametrize(
    ("pythons", "asked", "taken"),
    [
        ({"python3": {}, "python3.12": {"cuda": "12.8"}}, "", "python3.12"),
        ({"python3": {"cuda": ""}, "python": {"cuda": "12.8"}, "python3.12": {"cuda": "13.0"}}, "", "python"),
        ({"python3": {}, "python3.12": {"cuda": ""}}, "", "python3.12"),
        ({"python3": {"version": (3, 9), "cuda": "12.8"}, "python3.11": {}}, "", "python3.11"),
        ({"python3": {"cuda": "12.8"}, "mine": {}}, "mine", "mine"),
        ({"python3": {"version": (3, 9)}}, "", None),
    ],
)
def test_the_script_chooses_the_python_whose_torch_has_cuda(tmp_path, pythons, asked, taken):
    for name, what in pythons.items():
        python_of(tmp_path, name, **what)
    for name in ("env", "dirname"):
        (tmp_path / name).symlink_to(shutil.which(name))
    environment = {"PATH": str(tmp_path)} | ({"PYTHON": asked} if asked else {})
    command = ["/bin/sh", str(ROOT / "tools/check_gpu.sh"), "OUT"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False, env=environment)
    if taken is None:
        assert done.returncode == 2
        assert "no Python 3.11 or newer" in done.stderr
    else:
        assert done.stdout == f"taken: {taken} -m tools.gpu_checks OUT\n", done.stderr


def test_the_script_reports_checks_for_which_the_time_was_too_short(tmp_path):
    command = ["sh", str(ROOT / "tools/check_gpu.sh"), str(tmp_path), "--limit-s", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False, cwd=tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "checks.jsonl").read_text().splitlines()]
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(lines) == len(all_checks())
    assert {line["status"] for line in lines} == {NOT_REACHED}
    assert (tmp_path / "summary.md").exists()
