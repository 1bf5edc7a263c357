"""Completion in real shells: each sources the script as its users do, and the test presses TAB."""

import os
import pty
import re
import select
import subprocess
import time

import pytest

from clary.cli.completion import script
from clary.cli.main import build_parser
from needs import require

JOBS = ("my-job", "my-other-job")
START_S = 20.0
# Control sequences of a terminal: colours, cursor positions, titles.
CONTROL = re.compile(r"\x1b(?:\[[0-9;?]*[A-Za-z]|[=>]|\][^\x07]*\x07)|[\r\x07]")


@pytest.fixture
def shell_environment(tmp_path):
    """Variables of a shell with its own home and a fake `clary`, which lists two jobs and prints the scripts."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for shell in ("bash", "zsh", "fish"):
        (tmp_path / shell).write_text(script(build_parser()[0], shell))
    clary = programs / "FakeClary"
    clary.write_text(
        f"""#!/bin/sh
case "$1 $2" in
  completion*) cat "{tmp_path}/$2" ;;
  "jobs --names") echo {" ".join(JOBS)} | tr " " "\\n" ;;
esac
"""
    )
    clary.chmod(0o755)
    (programs / "clary").symlink_to(clary)
    (tmp_path / "a-file.txt").touch()
    return {
        "PATH": f"{programs}:/usr/bin:/bin",
        "HOME": str(tmp_path),
        "TERM": "xterm",
        "LC_ALL": "C.UTF-8",
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "XDG_DATA_HOME": str(tmp_path / "data"),
    }


class Terminal:
    """An interactive shell in a pseudo-terminal."""

    def __init__(self, command, environment):
        self._master, slave = pty.openpty()
        self._process = subprocess.Popen(
            command,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=environment,
            cwd=environment["HOME"],
            start_new_session=True,
        )
        os.close(slave)
        self.text = ""

    def ask(self, keys, until, *, within_s=START_S):
        """Send keys; return the terminal's output up to a pattern."""
        self.text = ""
        os.write(self._master, keys.encode())
        deadline = time.monotonic() + within_s
        while not re.search(until, self.text):
            left_s = deadline - time.monotonic()
            assert left_s > 0, f"{until!r} was not shown within {within_s} s of {keys!r}: {self.text!r}"
            if select.select([self._master], [], [], left_s)[0]:
                self.text = CONTROL.sub("", self.text + os.read(self._master, 65536).decode(errors="replace"))
        return self.text

    def close(self):
        self._process.kill()
        self._process.wait()
        os.close(self._master)


@pytest.fixture(params=["bash", "zsh", "zsh of a user with compinit"])
def terminal(request, shell_environment, tmp_path):
    shell, *about = request.param.split()
    if shell == "zsh":
        require("zsh")
        # The file must exist, or zsh asks a new user what to write into it.
        start = "autoload -Uz compinit && compinit\n" if about else ""
        (tmp_path / ".zshrc").write_text(f"unsetopt prompt_sp\n{start}")
    command = {"bash": ["bash", "--norc", "-i"], "zsh": ["zsh", "-i"]}[shell]
    opened = Terminal(command, {**shell_environment, "PS1": "ready> "})
    try:
        opened.ask("", "ready> ")
        # `do''ne` differs from its output, so that the pattern matches the shell's output and not the echoed input.
        opened.ask(f"source <(clary completion {shell}); echo do''ne\n", r"done\s+ready> ")
        yield opened
    finally:
        opened.close()


def test_a_shell_completes_commands_options_choices_and_jobs(terminal):
    assert "not found" not in terminal.text
    for begun, whole in (
        ("clary desc\t", "clary describe "),
        ("clary --context office desc\t", "clary --context office describe "),
        ("clary pools e\t", "clary pools end "),
        ("clary logs --foll\t", "clary logs --follow "),
        ("clary jobs --status Comp\t", "clary jobs --status Completed "),
        ("clary describe my-o\t", "clary describe my-other-job "),
        ("clary run a-f\t", "clary run a-file.txt "),
    ):
        shown = terminal.ask(begun, re.escape(whole))
        assert "not found" not in shown
        terminal.ask("\x15", "")  # discard the line


def test_commands_after_a_completed_line_still_complete_to_programs(terminal):
    terminal.ask("clary describe my-o\t", "clary describe my-other-job ")
    terminal.ask("\x15ls -d /u''sr\n", r"\n/usr")


@pytest.mark.needs("fish")
@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("clary de", {"describe", "delete"}),
        ("clary --context office de", {"describe", "delete"}),
        ("clary pools e", {"end"}),
        ("clary logs --foll", {"--follow"}),
        ("clary jobs --status Comp", {"Completed"}),
        ("clary describe my", set(JOBS)),
        ("clary describe ", set(JOBS)),
        ("clary wait stop ", set(JOBS)),
        ("clary run a-f", {"a-file.txt"}),
    ],
)
def test_fish_completes_commands_options_choices_and_jobs(shell_environment, line, offered):
    command = f"clary completion fish | source; complete -C {line!r}"
    told = subprocess.run(
        ["fish", "-c", command],
        capture_output=True,
        text=True,
        timeout=START_S,
        env=shell_environment,
        cwd=shell_environment["HOME"],
        check=True,
    )
    assert told.stderr == ""
    assert {row.split("\t")[0] for row in told.stdout.splitlines()} == offered
