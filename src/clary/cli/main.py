"""Entry point of the `clary` command.

Exit codes: 0 done, 1 the job or check failed, 2 wrong usage or input, 3 not found, 69 no answer from the service, 124
timed out, 130 interrupted. docs/commands.md has them all.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence

from clary import __version__
from clary.base.errors import ClaryError, Fault, WireError
from clary.cli.contexts import LOCAL, chosen_context
from clary.cli.examples import EXAMPLES
from clary.cli.no_answer import EXIT_NO_ANSWER, NoAnswer
from clary.cli.parsers import Commands, Parser, examples_text, parsers_below
from clary.cli.terminal_text import guarded_terminals

# Subcommands in the order of the help; each is the name of its module with a hyphen for an underscore.
VERBS = (
    "up",
    "env",
    "console",
    "jobs",
    "top",
    "describe",
    "logs",
    "metrics",
    "stragglers",
    "dump",
    "profile",
    "profile-report",
    "checkpoints",
    "tuning",
    "wait",
    "stop",
    "rerun",
    "cp",
    "delete",
    "plan",
    "run",
    "capacity",
    "hosts",
    "join",
    "pools",
    "spot",
    "rehearse",
    "doctor",
    "environments",
    "quarantine",
    "backup",
    "context",
    "completion",
    "restart",
    "down",
)
_NEEDS_ALL = "completion"  # its script holds all verbs

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_NOT_FOUND = 3
EXIT_INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    with guarded_terminals():
        return _main(arguments)


def build_parser(verbs: Sequence[str] = VERBS) -> tuple[Parser, Commands]:
    """Return the parser of the command line, and its commands.

    Args:
        verbs: commands to import; the parser knows no others.
    """
    parser = Parser(prog="clary", description="SageMaker Training on machines you own.", allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"clary {__version__}")
    parser.add_argument(
        "--context", metavar="NAME", help=f"of the service to talk to (see: clary context); {LOCAL}: this machine's"
    )
    commands = Commands(parser)
    for verb in verbs:
        # importing the modules of all verbs takes 550 ms, importing one takes 40 ms
        importlib.import_module(f"clary.cli.{verb.replace('-', '_')}").add_parser(commands)
    for path, below in parsers_below(parser):
        below.epilog = examples_text(EXAMPLES[path])
    return parser, commands


def _verbs_for(arguments: Sequence[str]) -> Sequence[str]:
    """Return only the command's verb if it is known and needs no other verb, else all verbs."""
    words = list(arguments)
    if words[:1] == ["--context"]:
        words = words[2:]
    elif words and words[0].startswith("--context="):
        words = words[1:]
    if words[:1] == ["--version"]:
        return ()
    is_plain = bool(words) and words[0] in VERBS and words[0] != _NEEDS_ALL
    return words[:1] if is_plain else VERBS


def _main(arguments: Sequence[str] | None) -> int:
    parser, commands = build_parser(_verbs_for(sys.argv[1:] if arguments is None else arguments))
    options, unknown = parser.parse_known_args(arguments)
    if unknown:  # reported with the usage of the command, to which the options belong
        commands.of(options.command).unknown(unknown)
    try:
        with chosen_context(options.context):
            code = int(options.run(options))
        sys.stdout.flush()  # flushed here, where a broken pipe is handled
        return code
    except WireError as error:
        print(f"clary: {error.message}", file=sys.stderr)
        return EXIT_NOT_FOUND if error.code == "NotFound" else EXIT_FAILED
    except NoAnswer as error:
        print(f"clary: {error.message}", file=sys.stderr)
        return EXIT_NO_ANSWER
    except ClaryError as error:
        print(f"clary: {error.message}", file=sys.stderr)
        return EXIT_USAGE if error.fault is Fault.USER else EXIT_FAILED
    except BrokenPipeError:
        # The reader of the pipe has ended (`clary logs JOB | head`): the flush of the buffer at exit must not fail.
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
        return EXIT_FAILED
    except OSError as error:
        print(f"clary: {_file_words(error)}", file=sys.stderr)
        return EXIT_USAGE
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def _file_words(error: OSError) -> str:
    """Return the file that an error is about, and the reason."""
    files = [os.fsdecode(name) for name in (error.filename, error.filename2) if isinstance(name, str | bytes)]
    return ": ".join(filter(None, (" -> ".join(files), error.strerror or str(error))))


if __name__ == "__main__":
    sys.exit(main())
