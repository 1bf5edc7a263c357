"""The lookup of a command."""

import pytest

from clary.agent.host.spawning import find_command


@pytest.fixture
def folders(tmp_path):
    for name, mode in (("plain", 0o644), ("ready", 0o755)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "train").write_text("#!/bin/sh\n")
        (tmp_path / name / "train").chmod(mode)
    (tmp_path / "folder" / "train").mkdir(parents=True)
    return tmp_path


def test_first_executable_of_the_path_wins(folders):
    path = f"{folders}/folder:{folders}/plain:{folders}/ready:/usr/bin"
    assert find_command("train", {"PATH": path}) == f"{folders}/ready/train"


def test_file_that_is_not_executable_is_named_when_there_is_no_better_one(folders):
    assert find_command("train", {"PATH": f"{folders}/folder:{folders}/plain"}) == f"{folders}/plain/train"


def test_names_with_a_slash_are_not_looked_up():
    assert find_command("./train", {"PATH": "/usr/bin"}) == "./train"


def test_program_without_path_gets_the_usual_one():
    assert find_command("sh", {}) in ("/usr/bin/sh", "/bin/sh")


def test_empty_element_of_the_path_is_the_working_folder(folders, monkeypatch):
    monkeypatch.chdir(folders / "ready")
    assert find_command("train", {"PATH": ":/usr/bin"}) == "./train"


def test_missing_command_leads_to_no_file(folders):
    assert find_command("no-such", {"PATH": str(folders)}) == "/nonexistent/no-such"
