"""Parts common to all commands: examples that parse, JSON, suggestions for misspelt words, completion in shells."""

import contextlib
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import clary.cli
from clary.cli.completion import script
from clary.cli.examples import EXAMPLES
from clary.cli.main import VERBS, build_parser, main
from clary.cli.parsers import did_you_mean, parsers_below

CLI = Path(clary.cli.__file__).parent
# `run` prints its program's output, `completion` prints a script.
WITHOUT_JSON = {"", "run", "completion"}


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
def test_a_misspelt_word_is_answered_with_the_likely_one(command, meant, capsys):
    with pytest.raises(SystemExit) as ended:
        main(command.split())
    assert ended.value.code == 2
    assert meant in capsys.readouterr().err


def test_nothing_is_suggested_without_a_similar_word():
    assert did_you_mean("xyzzy", ["jobs", "up"]) == ""


def completed(shell_script, *words, jobs=()):
    """Return bash's completions of the last word."""
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


def test_a_verb_loaded_alone_is_parsed_as_with_all_verbs():
    whole, _ = build_parser()
    (all_verbs,) = (action for action in whole._actions if action.dest == "command")
    assert list(all_verbs.choices) == list(VERBS)
    for verb in VERBS:
        alone, _ = build_parser([verb])
        (own,) = (action for action in alone._actions if action.dest == "command")
        assert list(own.choices) == [verb]
        assert own.choices[verb].format_help() == all_verbs.choices[verb].format_help()


def test_every_module_that_declares_a_verb_is_in_the_list():
    declared = {path.stem for path in CLI.glob("*.py") if "\ndef add_parser(" in path.read_text(encoding="utf-8")}
    assert {verb.replace("-", "_") for verb in VERBS} == declared


@pytest.mark.parametrize("line", ["jobs --json", "--context here jobs", "--context=here jobs -n 3"])
def test_modules_of_other_verbs_are_not_imported(line):
    program = (
        "import contextlib, sys\n"
        "from clary.cli.main import main\n"
        "with contextlib.suppress(BaseException):\n"
        f"    main({line.split()!r})\n"
        "print(sorted(name for name in sys.modules if name.startswith(('clary.cli.', 'aiohttp', 'sqlalchemy'))))"
    )
    told = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env={"CLARY_HOME": "/nowhere", "PATH": "/usr/bin:/bin"},
    )
    assert "'clary.cli.jobs'" in told.stdout, told
    assert not [
        name for name in ("aiohttp", "sqlalchemy", "clary.cli.up", "clary.cli.doctor") if f"'{name}'" in told.stdout
    ]


@pytest.mark.parametrize("words", [["--help"], ["completion", "bash"], []])
def test_the_overview_of_verbs_lists_all_of_them(words, capsys):
    with contextlib.suppress(SystemExit):
        main(words)
    said = "".join(capsys.readouterr())
    if words:
        assert all(verb in said for verb in VERBS)
    else:
        assert "usage: clary" in said
