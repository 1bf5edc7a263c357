"""Entry point of the `clary` command.

Exit codes: 0 done, 1 the job or check failed, 2 wrong usage or input, 3 not found, 124 timed out, 130 interrupted.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from clary import __version__
from clary.cli import (
    backup,
    checkpoints,
    console,
    describe,
    doctor,
    down,
    dump,
    env,
    environments,
    jobs,
    logs,
    metrics,
    plan,
    pools,
    profile,
    profile_report,
    quarantine,
    rehearse,
    run,
    spot,
    stop,
    stragglers,
    top,
    up,
)
from clary.cli.terminal_text import guarded_terminals
from clary.contract.errors import ClaryError, Fault, WireError

COMMANDS = (
    up,
    env,
    console,
    jobs,
    top,
    describe,
    logs,
    metrics,
    stragglers,
    dump,
    profile,
    profile_report,
    checkpoints,
    stop,
    plan,
    run,
    pools,
    spot,
    rehearse,
    doctor,
    environments,
    quarantine,
    backup,
    down,
)

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_NOT_FOUND = 3
EXIT_INTERRUPTED = 130


class _Parser(argparse.ArgumentParser):
    """Says where help is, whatever is wrong."""

    def error(self, message: str) -> NoReturn:
        """End with the usage and what is wrong with it."""
        super().error(f"{message}; see: {self.prog} --help")


class _Commands:
    """What modules declare their commands in; a command's own help begins with its line in the list of all."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        self._commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)

    def add_parser(self, name: str, **options: Any) -> argparse.ArgumentParser:
        """Declare a command as argparse does."""
        return self._commands.add_parser(name, **{"description": options["help"], **options})

    def of(self, name: str) -> argparse.ArgumentParser:
        """Return the parser of a command."""
        found: argparse.ArgumentParser = self._commands.choices[name]
        return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    with guarded_terminals():
        return _main(arguments)


def _main(arguments: Sequence[str] | None) -> int:
    parser = _Parser(prog="clary", description="SageMaker Training on machines you own.", allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"clary {__version__}")
    commands = _Commands(parser)
    for module in COMMANDS:
        module.add_parser(commands)
    options, unknown = parser.parse_known_args(arguments)
    if unknown:  # said with the usage of the command, which is the one that has options
        commands.of(options.command).error(f"unrecognized arguments: {' '.join(unknown)}")
    try:
        code = int(options.run(options))
        sys.stdout.flush()  # here, where a reader that has gone is expected
        return code
    except WireError as error:
        print(f"clary: {error.message}", file=sys.stderr)
        return EXIT_NOT_FOUND if error.code == "NotFound" else EXIT_FAILED
    except ClaryError as error:
        print(f"clary: {error.message}", file=sys.stderr)
        return EXIT_USAGE if error.fault is Fault.USER else EXIT_FAILED
    except BrokenPipeError:
        # Nobody reads on (`clary logs JOB | head`): what is left in the buffer has nowhere to go at exit either.
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
        return EXIT_FAILED
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
