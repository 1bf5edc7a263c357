"""`clary completion SHELL`: print what completes commands, options and names of jobs in bash, zsh or fish.

The words are written into the script, so that a key costs no start of Python; names of jobs alone are asked for.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from clary.cli.parsers import parsers_below

SHELLS = ("bash", "zsh", "fish")
NUM_JOBS = 200  # the newest, that are offered
_TAKES_JOB = ("job", "jobs", "words")  # places in which the name of a job is meant
_TAKES_SOURCE = "source"  # JOB:WHAT


@dataclass(frozen=True, kw_only=True)
class _Node:
    """What can come behind some words."""

    path: str
    words: tuple[str, ...]  # commands and options
    choices: tuple[tuple[str, tuple[str, ...]], ...]  # of options that take one of some words
    takes_job: bool


def add_parser(commands: Any) -> None:
    """Declare the command."""
    parser = commands.add_parser("completion", help="print what completes commands, options and jobs in a shell")
    parser.add_argument("shell", choices=SHELLS, metavar="SHELL", help=f"one of {', '.join(SHELLS)}")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the script."""
    from clary.cli.main import build_parser  # which declares this command

    print(script(build_parser()[0], options.shell), end="")
    return 0


def script(parser: argparse.ArgumentParser, shell: str) -> str:
    """Return what a shell has to read."""
    nodes = [_node(path, below) for path, below in parsers_below(parser)]
    if shell == "fish":
        return _fish(nodes, parser)
    bash = _bash(nodes)
    return f"autoload -U +X bashcompinit && bashcompinit\n{bash}" if shell == "zsh" else bash


def _node(path: str, parser: argparse.ArgumentParser) -> _Node:
    words: list[str] = []
    choices: list[tuple[str, tuple[str, ...]]] = []
    takes_job = False
    for action in parser._actions:
        listed = tuple(str(choice) for choice in action.choices or ())
        if not action.option_strings:
            words += listed
            takes_job = takes_job or action.dest in (*_TAKES_JOB, _TAKES_SOURCE)
        words += action.option_strings
        choices += [(option, listed) for option in action.option_strings if listed]
    return _Node(path=path, words=tuple(words), choices=tuple(choices), takes_job=takes_job)


def _bash(nodes: Sequence[_Node]) -> str:
    paths = "|".join(f'"{node.path}"' for node in nodes if node.path)
    cases = []
    for node in nodes:
        lines = [f'    "{node.path}")']
        lines += [
            f'      if [[ $before == {option} ]]; then words="{" ".join(listed)}"; jobs=0; return; fi'
            for option, listed in node.choices
        ]
        lines += [f'      words="{" ".join(node.words)}"', f"      jobs={int(node.takes_job)}", "      ;;"]
        cases.append("\n".join(lines))
    return f"""# Completion for clary; in bash: source <(clary completion bash)
_clary_words() {{
  case "$1" in
{chr(10).join(cases)}
  esac
}}
_clary() {{
  local current="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[COMP_CWORD-1]}}"
  local path="" longer word words="" jobs=0 i
  for ((i = 1; i < COMP_CWORD; i++)); do
    word="${{COMP_WORDS[i]}}"
    longer="${{path:+$path }}$word"
    case "$longer" in
      {paths}) path="$longer" ;;
    esac
  done
  _clary_words "$path"
  if [[ $jobs == 1 && $current != -* ]]; then
    words="$words $(clary jobs --names -n {NUM_JOBS} 2>/dev/null)"
  fi
  COMPREPLY=($(compgen -W "$words" -- "$current"))
}}
complete -o default -F _clary clary
"""


def _fish(nodes: Sequence[_Node], parser: argparse.ArgumentParser) -> str:
    helps = {path: (below.description or "").replace("'", "") for path, below in parsers_below(parser)}
    lines = ["# Completion for clary; in fish: clary completion fish | source", "complete -c clary -f"]
    for node in nodes:
        seen = [f"__fish_seen_subcommand_from {word}" for word in node.path.split()]
        condition = "; and ".join(seen) if seen else "__fish_use_subcommand"
        start = f"complete -c clary -n '{condition}'"
        for word in node.words:
            below = f"{node.path} {word}".strip()
            if word.startswith("--"):
                listed = dict(node.choices).get(word)
                lines.append(f"{start} -l {word[2:]}" + (f" -x -a '{' '.join(listed)}'" if listed else ""))
            elif word.startswith("-"):
                lines.append(f"{start} -s {word[1:]}")
            else:
                lines.append(f"{start} -a {word} -d '{helps.get(below, '')}'")
        if node.takes_job:
            lines.append(f"{start} -a '(clary jobs --names -n {NUM_JOBS} 2>/dev/null)'")
    return "\n".join(lines) + "\n"
