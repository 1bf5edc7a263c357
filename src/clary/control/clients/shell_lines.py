"""Lines that set and unset environment variables in the language of a shell.

Where: `clary env` prints them. `sh` stands for bash, zsh, dash and ksh too, `csh` for tcsh. Pure.

[Note: csh] eval `clary env --shell csh` splits the text at white space, expands patterns and braces, and reads the
rejoined words once more. A backslash before each special character keeps it through both passes, blanks included.
Nothing keeps braces and control characters, so they are refused. A comment would hide all that follows.

[Note: fish] A universal variable is stored for all shells of its user, and `set -e` without a scope would remove it for
good. So only the global one is removed, and the shell itself reports a universal one, which no global one can hide.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence

from clary.base.errors import ClaryError, Fault

SH, FISH, CSH = SHELLS = ("sh", "fish", "csh")
_PROGRAMS = {"fish": FISH, "csh": CSH, "tcsh": CSH, "bsd-csh": CSH}
_SPECIAL = re.compile(r"[^A-Za-z0-9_./:@%+,-]")
_LOST_IN_CSH = re.compile(r"[{}\x00-\x1f\x7f]")


def language_of(program: str) -> str:
    """Return the language of a program that is named like a shell; `sh` for any other program."""
    return _PROGRAMS.get(program, SH)


def set_lines(shell: str, variables: Mapping[str, str]) -> Sequence[str]:
    """Return the lines that export variables. Raises: ClaryError (fault USER) for a value that csh cannot read."""
    if shell == FISH:
        return [f"set -gx {name} {_fish_text(value)};" for name, value in variables.items()]
    if shell == CSH:
        return [f"setenv {name} {_csh_text(name, value)};" for name, value in variables.items()]
    return [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]


def unset_lines(shell: str, names: Sequence[str]) -> Sequence[str]:
    """Return the lines that unset variables, whether they are set or not."""
    if shell == FISH:
        return [f"set -e -g {' '.join(names)}; or true;"]
    if shell == CSH:
        return [f"unsetenv {name};" for name in names]
    return [f"unset {' '.join(names)}"]


def report_lines(shell: str, names: Sequence[str]) -> Sequence[str]:
    """Return the lines with which the shell reports variables that stay set; empty if it has no such variables."""
    if shell != FISH:
        return []
    text = '"clary: $clary_name is a universal variable of fish and stays: set -e -U $clary_name removes it"'
    return [
        f"for clary_name in {' '.join(names)}; "
        f"set -q -U -x $clary_name; and echo {text} >&2; end; set -e clary_name; or true;"
    ]


def _fish_text(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _csh_text(name: str, value: str) -> str:
    lost = _LOST_IN_CSH.search(value)
    if lost:
        raise ClaryError(
            f"csh cannot read the value of {name}: expected no braces and no control characters, got "
            f"{lost.group()!a} in {value[:150]!a}; change the value, or use another shell",
            fault=Fault.USER,
        )
    return _SPECIAL.sub(lambda special: f"\\{special.group()}", value)
