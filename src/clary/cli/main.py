"""Entry point of the `clary` command.

Exit codes: 0 done, 1 the job or check failed, 2 wrong usage or input, 3 not found, 124 timed out, 130 interrupted.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from clary import __version__
from clary.cli import (
    checkpoints,
    console,
    describe,
    doctor,
    down,
    dump,
    env,
    jobs,
    logs,
    metrics,
    plan,
    pools,
    profile,
    profile_report,
    rehearse,
    run,
    spot,
    stop,
    stragglers,
    top,
    up,
)
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
    down,
)

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_NOT_FOUND = 3
EXIT_INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    parser = argparse.ArgumentParser(
        prog="clary", description="SageMaker Training on machines you own.", allow_abbrev=False
    )
    parser.add_argument("--version", action="version", version=f"clary {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for module in COMMANDS:
        module.add_parser(commands)
    options = parser.parse_args(arguments)
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
