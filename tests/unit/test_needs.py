"""Missing needs of tests: the tests are skipped with the command that installs the need, and fail in CI."""

from pathlib import Path

import pytest

import needs


@pytest.fixture
def gone(monkeypatch, tmp_path):
    """The interpreter of an environment that does not exist."""
    missing = tmp_path / "sdk2/bin/python"
    monkeypatch.setitem(needs.NEEDS, "sdk2", needs.Need(str(missing), "make .venvs/sdk2.stamp"))
    return missing


@pytest.mark.parametrize(("is_ci", "outcome"), [("", pytest.skip.Exception), ("true", pytest.fail.Exception)])
def test_a_client_without_its_environment_is_skipped_with_the_command_that_creates_it(
    monkeypatch, gone, is_ci, outcome
):
    monkeypatch.setenv("CI", is_ci)
    with pytest.raises(outcome, match=r"`make \.venvs/sdk2\.stamp` brings it"):
        needs.require_python(gone)


def test_an_interpreter_that_exists_or_is_not_listed_passes(gone, tmp_path):
    needs.require_python(tmp_path / "another")
    needs.require_python(Path("/usr/bin/true"))


def test_every_client_environment_is_listed_as_a_need():
    assert {"train", "sdk2", "sdk3", "toolkit"} <= set(needs.NEEDS)
