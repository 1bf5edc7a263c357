"""Common parts of every command: examples that parse, JSON, guesses at misspelt words, completion in shells."""

import shlex
import subprocess

import pytest

from clary.cli.completion import script
from clary.cli.examples import EXAMPLES
from clary.cli.main import build_parser, main
from clary.cli.parsers import did_you_mean, parsers_below

# `run` prints what its program prints, `completion` a script; `spot` wants an action.
WITHOUT_JSON = {"", "run", "completion", "spot"}


def paths():
    return dict(parsers_below(build_parser()[0]))


def test_every_help_ends_with_examples_and_each_of_them_parses():
    parser, found = build_parser()[0], paths()
    assert set(EXAMPLES) == set(found), "no command is without, and none is for a command that does not exist"
    for path, examples in EXAMPLES.items():
        assert "\nexamples:\n" in found[path].format_help()
        for command, _ in examples:
            _, unknown = parser.parse_known_args(shlex.split(command))
            assert unknown == [], command


@pytest.mark.parametrize("path", sorted(set(EXAMPLES) - WITHOUT_JSON))
def test_every_command_prints_json_if_asked(path):
    (asked,) = (action for action in paths()[path]._actions if "--json" in action.option_strings)
    assert asked.nargs == 0, "it wants no file: what was asked for is printed"


@pytest.mark.parametrize(
    ("command", "meant"),
    [
        ("jbos", "did you mean 'jobs'?"),
        ("describ x", "did you mean 'describe'?"),
        ("jobs --staus Failed", "did you mean '--status'?"),
        ("jobs --status Runing", "did you mean 'Running'?"),
        ("pools ende x", "did you mean 'end'?"),
    ],
)
def test_a_slip_is_answered_with_what_was_probably_meant(command, meant, capsys):
    with pytest.raises(SystemExit) as ended:
        main(command.split())
    assert ended.value.code == 2
    assert meant in capsys.readouterr().err


def test_nothing_is_guessed_where_nothing_is_near():
    assert did_you_mean("xyzzy", ["jobs", "up"]) == ""


def completed(shell_script, *words, jobs=()):
    """Return bash's offers for the last word."""
    names = "\\n".join(jobs)
    line = " ".join(map(shlex.quote, words))
    text = (
        f"{shell_script}\nclary() {{ printf '{names}\\n'; }}\nCOMP_WORDS=({line}); COMP_CWORD={len(words) - 1}\n"
        '_clary; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    told = subprocess.run(["bash", "-c", text], capture_output=True, text=True, check=True, timeout=20)
    assert told.stderr == ""
    return set(told.stdout.split())


def test_bash_completes_commands_options_choices_and_jobs():
    made = script(build_parser()[0], "bash")
    assert completed(made, "clary", "de") == {"describe", "delete"}
    assert completed(made, "clary", "pools", "e", jobs=["e-job"]) == {"end"}
    assert "--follow" in completed(made, "clary", "logs", "--f")
    assert completed(made, "clary", "jobs", "--status", "Co") == {"Completed"}
    assert completed(made, "clary", "describe", "my", jobs=["my-job", "other"]) == {"my-job"}
    assert completed(made, "clary", "jobs", "my", jobs=["my-job"]) == set(), "where no job is named, none is offered"
    assert completed(made, "clary", "tuning", "tu", jobs=["tuned", "other"]) == {"tuned"}
    assert "clary tuning --names" in made


def test_zsh_and_fish_have_scripts_of_their_own():
    parser = build_parser()[0]
    assert "bashcompinit" in script(parser, "zsh")
    fish = script(parser, "fish")
    assert "-a describe -d 'say all that is known of a job'" in fish
    assert "-l status -x -a 'Queued Starting" in fish
    assert "-a '(clary tuning --names 2>/dev/null)'" in fish


def test_completion_refuses_a_shell_that_it_does_not_know(capsys):
    with pytest.raises(SystemExit):
        main(["completion", "tcsh"])
    assert "choose from" in capsys.readouterr().err
