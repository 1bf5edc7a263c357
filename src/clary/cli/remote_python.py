"""Runs the daemon's commands on a box through the system's OpenSSH with the user's configuration, or on this machine.

Where: `hosts` installs boxes with it, and `join` installs this machine. No argument is secret: code, settings and
tokens go through standard input. A box's answer is limited in size, and read as one line of JSON; it is data, never a
command.
"""

from __future__ import annotations

import json
import os
import re
import selectors
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from clary.agent.node.__main__ import ANSWER
from clary.agent.node.box_folder import ISOLATED
from clary.agent.node.packing import pack_node
from clary.base.errors import ClaryError, Fault
from clary.base.limited_runs import end_process
from clary.base.signal_names import signal_name

CONNECT_LIMIT_S = 15
CALL_LIMIT_S = 90.0
MAX_OUTPUT_BYTES = 256 * 1024
OLD_PYTHON = "CLARY-OLD-PYTHON "
EXIT_SSH = 255
EXIT_NO_PROGRAM = 127
EXIT_BY_SIGNAL = 128  # a shell adds the number of the signal
_TARGET = re.compile(r"(?:[A-Za-z0-9_][A-Za-z0-9._-]*@)?[A-Za-z0-9_:][A-Za-z0-9._:-]*")
_PROGRAM = re.compile(r"[A-Za-z0-9_./+][A-Za-z0-9_./+-]*")
_OPTION = re.compile(r"[A-Za-z][A-Za-z0-9]*[= ].+")
# Runs in any login shell of the box's user: the shell gets it in single quotes, so it contains no single quote.
_STARTER = (
    "import sys,tempfile,runpy;"
    f'sys.version_info<(3,10) and sys.exit("{OLD_PYTHON}"+sys.version.split()[0]);'
    'b=sys.stdin.buffer;f=tempfile.NamedTemporaryFile(suffix=".pyz");'
    "f.write(b.read(int(b.readline())));f.flush();sys.argv=[f.name]+sys.argv[1:];"
    'runpy.run_path(f.name,run_name="__main__")'
)


@dataclass(frozen=True, kw_only=True)
class Place:
    """The machine on which commands run."""

    target: str = ""  # USER@HOST as ssh takes it; empty: this machine
    python: str = "python3"
    ssh_options: tuple[str, ...] = ()

    def check(self) -> None:
        """Refuse names that contain characters special to a shell. Raises: ClaryError (fault USER)."""
        if self.target and not _TARGET.fullmatch(self.target):
            raise ClaryError(
                f"{self.target!a}: expected USER@BOX or a name of your ssh configuration", fault=Fault.USER
            )
        if not _PROGRAM.fullmatch(self.python):
            raise ClaryError(f"--python {self.python!a}: expected a name or a path without spaces", fault=Fault.USER)
        for option in self.ssh_options:
            if not _OPTION.fullmatch(option) or not option.isprintable():
                raise ClaryError(f"--ssh-option {option!a}: expected NAME=VALUE as of ssh_config", fault=Fault.USER)

    def _command(self, verb: str) -> list[str]:
        if not self.target:
            return [self.python, *ISOLATED, "-c", _STARTER, verb]
        fixed = {
            "BatchMode": "yes",
            "ControlMaster": "no",
            "ControlPath": "none",
            "ConnectTimeout": str(CONNECT_LIMIT_S),
            "ServerAliveInterval": "5",
            "ServerAliveCountMax": "3",
            "ClearAllForwardings": "yes",
            "ForwardAgent": "no",
        }
        options = [*(f"{name}={value}" for name, value in fixed.items()), *self.ssh_options]
        words = [word for option in options for word in ("-o", option)]
        return ["ssh", "-T", *words, "--", self.target, f"{self.python} {' '.join(ISOLATED)} -c '{_STARTER}' {verb}"]


def ask_node(place: Place, verb: str, document: Mapping[str, Any]) -> dict[str, Any]:
    """Run a command of the packed daemon on a machine and return its answer.

    Args:
        place: machine on which to run it.
        verb: probe or install.
        document: input of the command, sent as JSON.
    Raises: ClaryError with the error on that machine and what to do.
    """
    place.check()
    packed = pack_node()
    given = b"%d\n%b%b" % (len(packed), packed, json.dumps(document).encode())
    code, output, errors = run_bounded(place._command(verb), given, limit_s=CALL_LIMIT_S)
    for line in reversed(output.decode(errors="replace").splitlines()):
        if line.startswith(ANSWER):
            return _read_answer(line.removeprefix(ANSWER), place)
    raise ClaryError(
        _why_no_answer(place, code, *(text.decode(errors="replace") for text in (output, errors))),
        fault=Fault.INFRASTRUCTURE,
    )


def run_bounded(command: Sequence[str], given: bytes, *, limit_s: float) -> tuple[int, bytes, bytes]:
    """Run a program; return exit code, output and error output. End it when an output exceeds its limit.

    Args:
        command: program and arguments.
        given: bytes for its standard input.
        limit_s: time after which the program is ended, with exit code -1.
    Raises: ClaryError if the program cannot be started.
    """
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        )
    except OSError as error:
        raise ClaryError(f"{command[0]}: {error.strerror}; install it", fault=Fault.USER) from error
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    found = {process.stdout: bytearray(), process.stderr: bytearray()}
    deadline_s, left, code = time.monotonic() + limit_s, memoryview(given), -1
    try:
        with selectors.DefaultSelector() as selector:
            os.set_blocking(process.stdin.fileno(), False)
            selector.register(process.stdin, selectors.EVENT_WRITE)
            for stream in found:
                selector.register(stream, selectors.EVENT_READ)
            while selector.get_map() and (rest_s := deadline_s - time.monotonic()) > 0:
                for key, _ in selector.select(rest_s):
                    if key.fileobj is process.stdin:
                        left = _write_some(process.stdin.fileno(), left)
                        is_done = not left
                    else:
                        data = os.read(key.fd, 65536)
                        stream = process.stdout if key.fileobj is process.stdout else process.stderr
                        found[stream] += data
                        is_done = not data
                    if is_done:
                        selector.unregister(key.fileobj)
                        key.fileobj.close()  # type: ignore[union-attr]
                if max(map(len, found.values())) > MAX_OUTPUT_BYTES:
                    break
            else:
                if not selector.get_map():
                    code = process.wait(max(0.1, deadline_s - time.monotonic()))
    except subprocess.TimeoutExpired:
        pass
    finally:
        end_process(process)
    return code, bytes(found[process.stdout][:MAX_OUTPUT_BYTES]), bytes(found[process.stderr][:MAX_OUTPUT_BYTES])


def _write_some(descriptor: int, left: memoryview) -> memoryview:
    try:
        return left[os.write(descriptor, left[:65536]) :]
    except BlockingIOError:
        return left
    except BrokenPipeError:
        return left[:0]  # the program has ended; its output is still to be read


def _read_answer(text: str, place: Place) -> dict[str, Any]:
    try:
        answer = json.loads(text)
    except (ValueError, RecursionError):
        answer = None
    if not isinstance(answer, dict):
        raise ClaryError(f"{_named(place)}: its answer is not JSON: {text[:100]!a}", fault=Fault.INFRASTRUCTURE)
    if answer.get("error"):
        raise ClaryError(f"{_named(place)}: {_shown(str(answer['error']))}", fault=Fault.INFRASTRUCTURE)
    return answer


def _why_no_answer(place: Place, code: int, output: str, errors: str) -> str:
    told = _shown(errors.strip())
    if OLD_PYTHON in errors:
        version = _shown(errors.partition(OLD_PYTHON)[2].split("\n")[0])
        return (
            f"{_named(place)}: {place.python} is Python {version}, and 3.10 is the oldest that will do; name another "
            "with --python"
        )
    if code == -1:
        return f"{_named(place)}: no answer within {CALL_LIMIT_S:.0f} s, or far too long a one: {told}"
    if code == EXIT_SSH and place.target:
        # The login by hand must not prompt either: a password would work there and not here.
        first = f"try by hand: ssh -o BatchMode=yes {place.target} true"
        if "Permission denied" in errors:
            first = f"ssh is not to prompt, so it needs a key: ssh-copy-id {place.target}; {first}"
        return f"{_named(place)}: ssh does not get there: {told or 'ssh ended without a message'}; {first}"
    if code == EXIT_NO_PROGRAM:
        return f"{_named(place)}: there is no {place.python}; install Python 3.10 or newer, or name one with --python"
    if code > EXIT_BY_SIGNAL and not told and not output.strip():
        return f"{_named(place)}: the command was ended by {signal_name(code - EXIT_BY_SIGNAL)}, without a message"
    if place.target and not told:
        said = f", but said {_shown(output)!a}" if output.strip() else ""
        return (
            f"{_named(place)}: ssh gets there, and the command did not run: exit code {code}{said}; the user's login "
            "shell or a ForceCommand of its sshd seems to take its place; name a user who may run commands"
        )
    return f"{_named(place)}: exit code {code}: {told}"


def _named(place: Place) -> str:
    return place.target or "this machine"


def _shown(text: str) -> str:
    """Return the end of a received text as one line."""
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())[-300:]


def this_python() -> str:
    """Return the interpreter of this command."""
    return sys.executable
