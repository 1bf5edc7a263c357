"""Parsers of the command line: pointers to help, suggestions for misspelt words, examples in every help.

Where: `main` builds the tree; modules of verbs declare their commands in it with argparse's methods.
"""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NoReturn, cast

_INVALID_CHOICE = re.compile(r"invalid choice: '([^']*)'")


class Parser(argparse.ArgumentParser):
    """Ends every usage error with a pointer to help and the word that was probably meant."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **{"formatter_class": _HelpFormatter, **options})

    def error(self, message: str) -> NoReturn:
        """Exit with the usage and the error."""
        super().error(f"{message}{self._meant(message)}; see: {self.prog} --help")

    def _meant(self, message: str) -> str:
        wrong = _INVALID_CHOICE.search(message)
        if wrong is None or not message.startswith("argument "):
            return ""
        named = message.removeprefix("argument ").partition(":")[0]
        for action in self._actions:
            if action.choices is not None and named in (action.metavar, action.dest, "/".join(action.option_strings)):
                return did_you_mean(wrong[1], [str(choice) for choice in action.choices])
        return ""

    def unknown(self, arguments: Sequence[str]) -> NoReturn:
        """Exit with an error for arguments that no option or position accepts."""
        options = [name for action in self._actions for name in action.option_strings]
        guesses = [did_you_mean(word.partition("=")[0], options) for word in arguments if word.startswith("-")]
        self.error(f"unrecognized arguments: {' '.join(arguments)}{next(filter(None, guesses), '')}")


class _HelpFormatter(argparse.HelpFormatter):
    """Wraps descriptions as argparse does, and leaves the lines of examples unchanged."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if text.startswith(EXAMPLES_HEAD):
            return "\n".join(indent + line for line in text.splitlines())
        return super()._fill_text(text, width, indent)


EXAMPLES_HEAD = "examples:"


class Commands:
    """Registry in which modules declare commands; the `help` text of a command also begins its own help page."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        self.root = parser
        self._commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)

    def add_parser(self, name: str, **options: Any) -> argparse.ArgumentParser:
        """Declare a command as argparse does."""
        return self._commands.add_parser(name, **{"description": options["help"], **options})

    def of(self, name: str) -> Parser:
        """Return the parser of a command."""
        found: Any = self._commands.choices[name]
        return cast("Parser", found)  # subparsers have the class of their parent


def did_you_mean(wrong: str, known: Iterable[str]) -> str:
    """Return `; did you mean 'jobs'?` for the nearest known word, or an empty text if no word is near."""
    near = difflib.get_close_matches(wrong, list(known), n=1, cutoff=0.6)
    return f"; did you mean {near[0]!r}?" if near else ""


def parsers_below(parser: argparse.ArgumentParser, path: str = "") -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Yield a parser and all parsers below it, each with its command words: `pools end`."""
    yield path, parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, below in action.choices.items():
                yield from parsers_below(below, f"{path} {name}".strip())


def examples_text(examples: Sequence[tuple[str, str]]) -> str:
    """Return the examples of a help text: each command with its effect."""
    lines = [EXAMPLES_HEAD]
    for command, what in examples:
        lines += [f"  clary {command}".rstrip(), f"      {what}"]
    return "\n".join(lines)
