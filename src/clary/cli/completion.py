"""`clary completion SHELL`: print the script that completes commands, options and names of jobs in bash, zsh or fish.

The script holds the commands and options, so that completing them starts no Python; it calls `clary` only to get names.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from clary.cli.parsers import parsers_below

SHELLS = ("bash", "zsh", "fish")
NUM_JOBS = 200  # number of the newest jobs that are offered as completions
_TAKES_JOB = ("job", "jobs", "words", "source")  # arguments that name a job; a source is JOB:WHAT
_TAKES_TUNING = "tuning_job"
_JOBS, _TUNING = f"clary jobs --names -n {NUM_JOBS}", "clary tuning --names"
# Until compinit is called, zsh has no completion for bashcompinit to build on.
_ZSH_START = """(( $+functions[compdef] )) || { autoload -U compinit && compinit -i }
autoload -U +X bashcompinit && bashcompinit
"""


@dataclass(frozen=True, kw_only=True)
class _Node:
    """Words that can follow the words typed so far."""

    path: str
    words: tuple[str, ...]  # commands and options
    choices: tuple[tuple[str, tuple[str, ...]], ...]  # values of the options with a fixed list of values
    names: str  # command that prints the names that can also follow; empty if none can


def add_parser(commands: Any) -> None:
    """Declare the command."""
    parser = commands.add_parser("completion", help="print a shell script that completes commands, options and jobs")
    parser.add_argument("shell", choices=SHELLS, metavar="SHELL", help=f"one of {', '.join(SHELLS)}")
    parser.set_defaults(run=run, root=commands.root)


def run(options: argparse.Namespace) -> int:
    """Print the script for all commands, which `root` knows."""
    print(script(options.root, options.shell), end="")
    return 0


def script(parser: argparse.ArgumentParser, shell: str) -> str:
    """Return the completion script of a shell."""
    nodes = [_node(path, below) for path, below in parsers_below(parser)]
    if shell == "fish":
        return _fish(nodes, parser)
    return _ZSH_START + _bash(nodes) if shell == "zsh" else _bash(nodes)


def _node(path: str, parser: argparse.ArgumentParser) -> _Node:
    words: list[str] = []
    choices: list[tuple[str, tuple[str, ...]]] = []
    names = ""
    for action in parser._actions:
        listed = tuple(str(choice) for choice in action.choices or ())
        if not action.option_strings:
            words += listed
            if action.dest in _TAKES_JOB:
                names = _JOBS
            elif action.dest == _TAKES_TUNING:
                names = _TUNING
        words += action.option_strings
        choices += [(option, listed) for option in action.option_strings if listed]
    return _Node(path=path, words=tuple(words), choices=tuple(choices), names=names)


def _bash(nodes: Sequence[_Node]) -> str:
    """Return the script for bash, which zsh reads too.

    zsh has special variables with common names: `path` is tied to PATH, `words` is the line that is completed. So each
    variable of the script begins with `clary_`.
    """
    paths = "|".join(f'"{node.path}"' for node in nodes if node.path)
    cases = []
    for node in nodes:
        lines = [f'    "{node.path}")']
        lines += [
            f"      if [[ $clary_before == {option} ]]; then"
            f' clary_offered="{" ".join(listed)}"; clary_names=""; return; fi'
            for option, listed in node.choices
        ]
        lines += [
            f'      clary_offered="{" ".join(node.words)}"',
            f'      clary_names="{node.names}"',
            "      ;;",
        ]
        cases.append("\n".join(lines))
    return f"""# Completion for clary; in bash: source <(clary completion bash); in zsh: source <(clary completion zsh)
_clary_words() {{
  case "$1" in
{chr(10).join(cases)}
  esac
}}
_clary() {{
  local clary_current="${{COMP_WORDS[COMP_CWORD]}}" clary_before="${{COMP_WORDS[COMP_CWORD-1]}}"
  local clary_at="" clary_longer clary_word clary_offered="" clary_names="" clary_i
  for ((clary_i = 1; clary_i < COMP_CWORD; clary_i++)); do
    clary_word="${{COMP_WORDS[clary_i]}}"
    clary_longer="${{clary_at:+$clary_at }}$clary_word"
    case "$clary_longer" in
      {paths}) clary_at="$clary_longer" ;;
    esac
  done
  _clary_words "$clary_at"
  if [[ -n $clary_names && $clary_current != -* ]]; then
    clary_offered="$clary_offered $(eval "$clary_names" 2>/dev/null)"
  fi
  COMPREPLY=($(compgen -W "$clary_offered" -- "$clary_current"))
}}
complete -o default -F _clary clary
"""


def _fish(nodes: Sequence[_Node], parser: argparse.ArgumentParser) -> str:
    helps = {path: (below.description or "").replace("'", "") for path, below in parsers_below(parser)}
    paths = " ".join(f"'{node.path}'" for node in nodes if node.path)
    lines = [
        "# Completion for clary; in fish: clary completion fish | source",
        "function __clary_at -a wanted",  # whether the words so far lead to this command; options may lie between them
        "  set -l at ''",
        "  for word in (commandline -opc)[2..-1]",
        "    set -l longer (string trim -- $at' '$word)",
        f"    contains -- $longer {paths}; and set at $longer",
        "  end",
        '  test "$at" = "$wanted"',
        "end",
    ]
    for node in nodes:
        start = f"complete -c clary -n '__clary_at \\'{node.path}\\''"
        if node.names or not node.path:
            lines.append(f"{start} -f")  # no files where a command or a job is expected
        for word in node.words:
            below = f"{node.path} {word}".strip()
            if word.startswith("--"):
                listed = dict(node.choices).get(word)
                lines.append(f"{start} -l {word[2:]}" + (f" -x -a '{' '.join(listed)}'" if listed else ""))
            elif word.startswith("-"):
                lines.append(f"{start} -s {word[1:]}")
            else:
                lines.append(f"{start} -a {word} -d '{helps.get(below, '')}'")
        if node.names:
            lines.append(f"{start} -a '({node.names} 2>/dev/null)'")
    return "\n".join(lines) + "\n"
