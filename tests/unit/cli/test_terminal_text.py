"""Control sequences in untrusted text do not reach the terminal; our own colours do."""

import io
import sys

import pytest

from clary.cli import logs, main
from clary.cli.terminal_text import GuardedTerminal, draw_over, ended_colours, safe_text


class FakeTerminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b]52;c;ZXZpbA==\x07", "\\x1b]52;c;ZXZpbA==\\x07"),
        ("\x1b]0;title\x1b\\", "\\x1b]0;title\\x1b\\"),
        ("\x9d52;c;x\x9c", "\\x9d52;c;x\\x9c"),
        ("\x1b[2J\x1b[1;1H", "\\x1b[2J\\x1b[1;1H"),
        ("\x1b[6n", "\\x1b[6n"),
        ("\x9b2J", "\\x9b2J"),
        ("\x1bP$q\x1b\\", "\\x1bP$q\\x1b\\"),
        ("\x1bc", "\\x1bc"),
        ("a\rb\x08c\x7f\x00\x0b\x0c", "a\\rb\\x08c\\x7f\\x00\\x0b\\x0c"),
        ("\x1b[31\x1b[mm", "\\x1b[31\x1b[mm"),
        ("\x1b[" + "1" * 100 + "m", "\\x1b[" + "1" * 100 + "m"),
        ("user\u202egnp.exe", "user\\u202egnp.exe"),
        ("\u2028", "\\u2028"),
    ],
)
def test_control_sequences_are_escaped(text, shown):
    assert safe_text(text) == shown


@pytest.mark.parametrize(
    "text", ["\x1b[31mred\x1b[0m", "\x1b[38;2;1;2;3m", "tab\tand\nline", "\u00fc\u6f22\U0001f642 \u2588"]
)
def test_text_and_colours_pass(text):
    assert safe_text(text) == text


def test_every_command_prints_through_the_guard(monkeypatch):
    terminal, errors = FakeTerminal(), FakeTerminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setattr(sys, "stderr", errors)

    def run(options):
        print("reason: \x1b]52;c;x\x07")
        print("said \x9b2J", file=sys.stderr)
        draw_over(sys.stderr, "50 % \x07")
        return 0

    monkeypatch.setattr(logs, "run", run)
    assert main.main(["logs", "job"]) == 0
    assert terminal.getvalue() == "reason: \\x1b]52;c;x\\x07\n"
    assert errors.getvalue() == "said \\x9b2J\n\r\x1b[K50 % \\x07"
    assert sys.stdout is terminal


def test_pipes_and_files_get_every_byte(monkeypatch):
    pipe = io.StringIO()
    monkeypatch.setattr(sys, "stdout", pipe)
    monkeypatch.setattr(logs, "run", lambda options: print("\x1b]52;c;x\x07") or 0)
    assert main.main(["logs", "job"]) == 0
    assert pipe.getvalue() == "\x1b]52;c;x\x07\n"


def test_a_colour_ends_with_its_line():
    assert ended_colours("\x1b[31mred") == "\x1b[31mred\x1b[0m"
    assert ended_colours("plain") == "plain"


def test_the_guard_passes_all_other_attributes_to_the_stream():
    terminal = FakeTerminal()
    guard = GuardedTerminal(terminal)
    guard.writelines(["a\x07", "b"])
    guard.flush()
    assert (guard.isatty(), terminal.getvalue()) == (True, "a\\x07b")
