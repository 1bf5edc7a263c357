"""`clary profile-report`: verdicts as text and JSON, and the page written to a file."""

import json

import pytest

from clary.cli import profile_report
from clary.cli.connection import Connection
from clary.cli.main import main


def rule(name, **changes):
    return {
        "rule": name,
        "fires": False,
        "was_judged": True,
        "detail": f"{name} is fine",
        "earlier": "",
        "evidence": [],
        "advice": "",
        **changes,
    }


PAGE = {
    "job": "demo",
    "status": "Completed",
    "rules": [
        rule("IOBottleneck", was_judged=False, detail="no GPU was measured"),
        rule("StepOutlier"),
        rule("LoadBalancing", fires=True, detail="gpu-1 idles", evidence=["first", "second"], advice="share"),
        rule("Dataloader", fires=True, earlier="was starved"),
    ],
}


class FakeConnection(Connection):
    """Returns the page, and its HTML on request."""

    def __init__(self):
        self.__dict__.update(asked=[])

    def job_page(self, job, page="", query=None):
        self.asked.append((job, page, dict(query or {})))
        return json.loads(json.dumps(PAGE | ({"html": "<!DOCTYPE html>\u00e9"} if "html" in query else {})))


@pytest.fixture
def connection(monkeypatch):
    fake = FakeConnection()
    monkeypatch.setattr(profile_report, "connect", lambda: fake)
    return fake


def test_verdicts_that_fired_are_listed_first(connection, capsys):
    assert main(["profile-report", "demo"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "demo  Completed"
    assert [line.split()[:2] for line in lines[1:] if not line.startswith(" " * 10)] == [
        ["ISSUE", "LoadBalancing"],
        ["ISSUE", "Dataloader"],
        ["ok", "StepOutlier"],
        ["-", "IOBottleneck"],
    ]
    assert "was starved" in lines[4]
    assert lines[2].strip() == "second"
    assert lines[3].strip() == "> share"
    assert connection.asked == [("demo", "profiler-report", {"format": "json"})]


def test_the_page_is_written_to_the_given_path(connection, capsys, tmp_path):
    assert main(["profile-report", "demo", "--output", str(tmp_path / "report.html"), "--json"]) == 0
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == "<!DOCTYPE html>\u00e9"
    assert "html" not in json.loads(capsys.readouterr().out)


def test_a_path_that_cannot_be_written_is_named(connection, capsys, tmp_path):
    assert main(["profile-report", "demo", "--output", str(tmp_path / "no" / "report.html")]) == 2
    assert "cannot be written" in capsys.readouterr().err
