"""The tool that runs the SDK's own tests: its plugin's replacements and deadlines, and the table that it writes."""

import json
import os
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from tools.run_sdk_tests import merged
from tools.sdk_tests import page
from tools.sdk_tests.plan import PLANS, Suite, settings
from tools.sdk_tests.reasons import REASONS, Reason, reason_of
from tools.sdk_tests.running import NOT_RUN, Ended, read_record, run_suite

CONFTEST = """
import pytest

@pytest.fixture(scope="session")
def image_that_is_built():
    raise RuntimeError("docker build was called")
"""

TESTS = """
import time

import pytest

def test_image(image_that_is_built):
    assert image_that_is_built == "registry.example/image:1"

def test_again(image_that_is_built):
    assert image_that_is_built == "registry.example/image:1"

def test_waits_on_and_on():
    try:
        time.sleep(600)
    finally:
        assert time.monotonic() > 0

def test_fails():
    raise ValueError("no such | column")

@pytest.mark.skip(reason="on Tuesdays")
def test_skips():
    raise AssertionError
"""
NAMES = {"image": "passed", "again": "passed", "waits_on_and_on": "failed", "fails": "failed", "skips": "skipped"}


def run(folder, tests=TESTS, **changes):
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_it.py").write_text(tests)
    told = {
        "checkout": folder,
        "python": Path(sys.executable),
        "environment": {**os.environ, "PYTEST_ADDOPTS": "-p no:randomly"},
        "fixtures": {"image_that_is_built": "registry.example/image:1"},
        "deadline_s": 3.0,
        "match": "",
        "log": folder / "suite.log",
    }
    return run_suite(Suite(folder=".", paths=("test_it.py",)), **(told | changes))


def test_fixtures_are_replaced_and_each_test_has_a_deadline(tmp_path):
    ends = run(tmp_path)
    found = {end.test.removeprefix("test_it.py::test_"): end.outcome for end in ends}
    assert found == NAMES, (tmp_path / "suite.log").read_text()
    words = {end.test.rpartition("_")[2]: end.words for end in ends}
    assert words["on"] == "DeadlineError: did not end within 3 s"
    assert words["fails"] == "ValueError: no such | column"
    assert "on Tuesdays" in words["skips"]


def test_a_suite_that_dies_reports_the_finished_tests_and_the_missing_rest(tmp_path):
    ends = run(tmp_path, "import os\n\ndef test_one():\n    pass\n\ndef test_two():\n    os._exit(9)\n")
    assert [(end.test, end.outcome) for end in ends] == [("test_it.py::test_one", "passed"), ("test_it.py", NOT_RUN)]
    assert "ended with 9" in ends[1].words


def test_a_suite_without_a_matching_test_is_no_failure(tmp_path):
    assert run(tmp_path, match="of_another_name") == []


def test_settings_name_each_image_of_the_fixtures_and_only_existing_environments(tmp_path):
    for sdk, plan in PLANS.items():
        here = replace(plan, python=tmp_path / "sdk")
        here.python.touch()
        bare = tomllib.loads(settings(here, tmp_path))
        assert set(bare["environments"]) == set(bare["images"].values()) == {"sdk"}
        for name in ("mxnet", f"sdk{sdk}-other"):
            (tmp_path / name / "bin").mkdir(parents=True, exist_ok=True)
            (tmp_path / name / "bin/python").touch()
        whole = tomllib.loads(settings(here, tmp_path))
        images = {value.rpartition("/")[2] for value in plan.fixtures(tmp_path / "a").values() if "dkr.ecr" in value}
        assert images <= set(whole["images"])
        assert set(whole["images"].values()) == set(whole["environments"]) == {"sdk", "other", "mxnet"}
        for name in ("mxnet", f"sdk{sdk}-other"):
            (tmp_path / name / "bin/python").unlink()


def test_the_table_has_each_test_with_its_reason(tmp_path):
    path = tmp_path / "clients.md"
    path.write_text(
        "before\n<!-- SDK v2: written by tools/run_sdk_tests.py -->\nold\n<!-- end of SDK v2 -->\nafter\n"
        "<!-- SDK v3: written by tools/run_sdk_tests.py -->\nkept\n<!-- end of SDK v3 -->\n"
    )
    result = {"repository": "2.0", "packages": {"sagemaker": "2.1"}}
    ends = [Ended(test="a.py::one", outcome="passed"), Ended(test="b.py::two", outcome="failed", words="x | y\nz")]
    page.write(2, result, ends, path)
    text = path.read_text()
    assert text.startswith("before\n")
    assert "\nold\n" not in text
    assert "\nafter\n" in text
    assert "\nkept\n" in text
    assert "version 2.0, with sagemaker 2.1: **1 passed, 1 failed**" in text
    assert "`a.py`\n\n| test | outcome | reason |\n|---|---|---|\n| `one` | passed |  |\n" in text
    assert "| `two` | failed | not looked at yet: x \\| y z |" in text
    page.write(2, result, ends, path)
    assert path.read_text() == text


def test_a_page_without_the_marks_of_a_table_is_refused(tmp_path):
    path = tmp_path / "clients.md"
    path.write_text("nothing\n")
    with pytest.raises(ValueError, match="has no lines"):
        page.write(2, {"repository": "", "packages": {}}, [], path)
    assert path.read_text() == "nothing\n"


def test_a_reason_applies_by_name_and_by_message():
    reason = Reason(tests="*::two*", words="needs", kind="kind", why="why")
    fits = Ended(test="b.py::two[1]", outcome="failed", words="it needs docker")
    assert reason_of(fits, (reason,)) is reason
    assert reason_of(Ended(test="b.py::one", outcome="failed", words="it needs docker"), (reason,)) is None
    other = Ended(test="b.py::two", outcome="failed", words="other")
    assert page.unexplained([fits, other], (reason,)) == [other]


def test_skipped_tests_are_explained_by_their_skip_message():
    said = [
        Ended(test="a::b", outcome="skipped", words=f"Skipped: {why}") for why in ("for numpy 1", "unconditional skip")
    ]
    section = page.section({"repository": "", "packages": {}}, said, ())
    assert "| the SDK's repository skips it: for numpy 1 |" in section
    assert "| the SDK's repository skips it |" in section
    assert page.unexplained(said, ()) == []


def test_every_reason_is_a_sentence_without_a_period():
    for reason in REASONS:
        assert reason.why
        assert not reason.why.endswith(".")
        assert reason.kind


def test_the_published_page_explains_every_test_that_did_not_pass():
    text = page.PAGE.read_text()
    for sdk in PLANS:
        _, begun, rest = text.partition(f"<!-- SDK v{sdk}: written by tools/run_sdk_tests.py -->")
        section, ended, _ = rest.partition(f"<!-- end of SDK v{sdk} -->")
        assert begun
        assert ended
        assert section.count("| passed |") > 10
    assert "not looked at yet" not in text


def test_a_record_is_read_back(tmp_path):
    line = {"test": "a::b", "outcome": "passed", "words": "", "seconds": 1.5, "phase": "call"}
    (tmp_path / "r").write_text(json.dumps(line) + "\n")
    assert read_record(tmp_path / "r") == [Ended(test="a::b", outcome="passed", seconds=1.5)]


def test_repeated_tests_replace_only_their_own_results():
    def end(test, outcome="passed"):
        return {"test": test, "outcome": outcome}

    before = [end("b.py::one", "failed"), end("b.py::two"), end("b.py", NOT_RUN), end("a.py::one")]
    now = [end("b.py::one"), end("b.py::three", "failed")]
    told = [(found["test"], found["outcome"]) for found in merged(before, now)]
    assert told == [
        ("a.py::one", "passed"),
        ("b.py::one", "passed"),
        ("b.py::two", "passed"),
        ("b.py::three", "failed"),
    ]


def test_the_tool_prints_its_usage():
    done = subprocess.run(
        [sys.executable, "-m", "tools.run_sdk_tests", "--help"], capture_output=True, text=True, timeout=50, check=True
    )
    assert "--other-python" in done.stdout
