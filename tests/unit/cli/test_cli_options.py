"""Options of commands: each has its effect or is refused, and `--json` prints JSON wherever it is taken."""

import json
from types import SimpleNamespace

import pytest

from clary.cli.main import VERBS, build_parser, main
from clary.cli.parsers import parsers_below

NOTHING = {"problems": [], "jobs": [], "total": 0, "next": None, "states": {}}


def json_of(capsys, *arguments):
    assert main(arguments) == 0
    return json.loads(capsys.readouterr().out)


def test_json_may_precede_or_follow_the_action():
    parser, _ = build_parser(VERBS)
    needed = {
        "hosts add": ["a"],
        "hosts drain": ["a"],
        "hosts resume": ["a"],
        "hosts remove": ["a"],
        "pools end": ["x"],
        "spot capacity": ["1"],
        "spot reclaim": ["x"],
        "environments add": ["x"],
        "environments remove": ["x"],
        "quarantine show": ["1"],
        "quarantine release": ["1"],
        "quarantine drop": ["1"],
        "context use": ["x"],
        "context add": ["x", "f"],
        "context remove": ["x"],
    }
    for path in [path for path, _ in parsers_below(parser) if " " in path]:
        verb, action = path.split()
        assert parser.parse_args([verb, "--json", action, *needed.get(path, [])]).json, path
        assert parser.parse_args([verb, action, *needed.get(path, []), "--json"]).json, path
        assert not parser.parse_args([verb, action, *needed.get(path, [])]).json, path


def test_names_are_json_if_asked(monkeypatch, capsys):
    jobs = {**NOTHING, "jobs": [{"name": "b"}, {"name": "a"}], "total": 2}
    monkeypatch.setattr("clary.cli.jobs.connect", lambda: SimpleNamespace(get=lambda path, query=None: jobs))
    assert json_of(capsys, "jobs", "--names", "--json") == ["b", "a"]
    page = {"tuning_jobs": [{"name": "t"}]}
    monkeypatch.setattr("clary.cli.tuning.connect", lambda: SimpleNamespace(get=lambda path: page))
    assert json_of(capsys, "tuning", "--names", "--json") == ["t"]


def test_the_token_is_json_if_asked(monkeypatch, capsys):
    service = SimpleNamespace(settings=None, secrets=SimpleNamespace(metrics_token="secret"))
    monkeypatch.setattr("clary.cli.metrics.connect", lambda: service)
    monkeypatch.setattr("clary.cli.metrics.require_local", lambda settings, verb: None)
    assert json_of(capsys, "metrics", "--token", "--json") == {"token": "secret"}


def test_a_cancelled_profile_is_json_if_asked(monkeypatch, capsys):
    service = SimpleNamespace(post_job_page=lambda job, page, body: {"number": 4})
    monkeypatch.setattr("clary.cli.profile.connect", lambda: service)
    assert json_of(capsys, "profile", "x", "--cancel", "--json") == {"job": "x", "number": 4}


def test_spot_alone_shows_the_market(monkeypatch, capsys):
    facts = {"capacity": 2, "is_set_by_hand": True, "next_change_s": None, "uses": []}
    monkeypatch.setattr("clary.cli.spot.connect", lambda: SimpleNamespace(get=lambda path: facts))
    assert json_of(capsys, "spot", "--json") == facts
    assert json_of(capsys, "spot", "status", "--json") == facts


def test_stop_prints_json_of_a_job_that_did_not_end_in_time(monkeypatch, capsys):
    state = {"name": "x", "status": "Stopping", "state": "Stopping", "failure_reason": ""}
    service = SimpleNamespace(call=lambda operation, parameters: {}, job_page=lambda job, page, query=None: state)
    service.again = lambda: service
    monkeypatch.setattr("clary.cli.stop.connect", lambda: service)
    assert main(["stop", "x", "--wait", "0", "--json"]) == 124
    assert json.loads(capsys.readouterr().out)["State"] == "Stopping"


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("profile x --last --ranks 0", "--last shows the newest profile as it is: leave out --ranks"),
        ("profile x --cancel --ranks 0", "--cancel shows no profile: leave out --ranks"),
        ("profile x --cancel --output d", "--cancel shows no profile: leave out --output"),
        ("logs x --progress", "--progress belongs to --follow"),
        ("metrics x --token", "--token prints the token alone: leave out JOB"),
        ("metrics --token --training --host algo-1", "leave out --training, --host"),
    ],
)
def test_options_that_have_no_effect_together_are_refused(monkeypatch, capsys, command, words):
    verb = command.split()[0]
    monkeypatch.setattr(f"clary.cli.{verb}.connect", lambda: pytest.fail("the service is asked"))
    assert main(command.split()) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("number", ["nan", "inf", "-1", "soon"])
@pytest.mark.parametrize(
    "command",
    [
        "stop x --wait",
        "rehearse x --kill algo-1@1s --timeout",
        "spot reclaim x --grace",
        "profile x --seconds",
        "hosts token --minutes",
    ],
)
def test_times_are_finite_numbers_from_zero(capsys, command, number):
    with pytest.raises(SystemExit) as ended:
        main(f"{command}={number}".split())
    assert ended.value.code == 2
    assert f"expected {'minutes' if 'minutes' in command else 'seconds'}, got '{number}'" in capsys.readouterr().err
