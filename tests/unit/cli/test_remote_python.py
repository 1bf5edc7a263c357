"""Commands on boxes by ssh: messages for a box that runs no command. A shell script stands in for ssh."""

import pytest

from clary.base.errors import ClaryError
from clary.cli.remote_python import Place, ask_node

PLACE = Place(target="ml@box1")


@pytest.fixture
def ssh(tmp_path, monkeypatch):
    """Return a function that writes the stand-in for ssh."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    def write(body):
        program = tmp_path / "ssh"
        program.write_text(f"#!/bin/sh\ncat >/dev/null\n{body}\n")
        program.chmod(0o755)

    return write


def refusal():
    with pytest.raises(ClaryError) as caught:
        ask_node(PLACE, "probe", {})
    return caught.value.message


@pytest.mark.parametrize("code", [0, 1])
def test_the_words_of_a_command_that_ssh_runs_instead_of_ours_are_shown(ssh, code):
    ssh(f"echo This account is currently not available.; exit {code}")
    told = refusal()
    assert told.startswith("ml@box1: ")
    assert "This account is currently not available." in told
    assert "ForceCommand" in told


def test_a_box_that_ends_every_session_without_a_word_is_explained(ssh):
    ssh("exit 255")
    assert "ssh ended without a message" in refusal()


def test_a_refused_login_names_the_way_to_log_in_without_a_prompt(ssh):
    ssh("echo 'ml@box1: Permission denied (publickey,password).' >&2; exit 255")
    told = refusal()
    assert "Permission denied (publickey,password)." in told
    assert "ssh-copy-id ml@box1" in told
    assert "ssh -o BatchMode=yes ml@box1 true" in told


def test_an_error_of_the_box_is_shown_without_a_remark_on_forced_commands(ssh):
    ssh("echo hello from .bashrc; echo Traceback: disk full >&2; exit 1")
    assert refusal() == "ml@box1: exit code 1: Traceback: disk full"


@pytest.mark.parametrize(("code", "name"), [(137, "SIGKILL"), (143, "SIGTERM")])
def test_a_command_that_a_signal_ended_is_not_taken_for_a_login_that_runs_none(ssh, code, name):
    ssh(f"exit {code}")
    told = refusal()
    assert told == f"ml@box1: the command was ended by signal {code - 128} ({name}), without a message"
