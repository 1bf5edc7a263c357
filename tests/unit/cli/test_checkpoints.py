"""`clary checkpoints`: tables, lines for faults, exit codes, and no control character from names in a bucket."""

import json
import time
from datetime import UTC, datetime, timedelta

import pytest

from clary.base.plain import to_plain
from clary.cli import checkpoints
from clary.cli.checkpoint_words import mirror_lines, printable, set_row, size, verdict_line
from clary.cli.connection import Connection
from clary.cli.describe import describe
from clary.cli.main import main
from clary.contract.agent_protocol import CheckpointFacts

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


class FakeConnection(Connection):
    """Returns a list of pages in order, and records the requests."""

    def __init__(self, answers):
        self.__dict__.update(answers=list(answers), asked=[])

    def job_page(self, job, page="", query=None):
        self.asked.append((job, page, dict(query or {})))
        return self.answers.pop(0)


def command(monkeypatch, pages, *arguments):
    fake = FakeConnection(pages)
    monkeypatch.setattr(checkpoints, "connect", lambda: fake)
    return main(["checkpoints", *arguments]), fake


def entry(host="algo-1", number=12, **changes):
    values = {
        "host": host,
        "number": number,
        "state": "whole",
        "is_newest": True,
        "fault": "",
        "taken_at": (NOW - timedelta(seconds=5)).isoformat(),
        "job_arn": "arn:aws:sagemaker:us-west-2:000000000000:training-job/demo",
        "attempt": 1,
        "num_files": 4,
        "size_bytes": 16_500_000,
        "evidence": {"closed": 4},
        "least_rest_s": 0.0,
    }
    return values | changes


def page(*entries, **changes):
    values = {
        "uri": "s3://b/ckpt",
        "job_arn": entry()["job_arn"],
        "is_over": False,
        "sets": list(entries),
        "num_left_out": 0,
        "hosts": {},
    }
    return values | changes


def findings(**paths):
    first = [{"path": path, "key": path, "fault": fault} for path, fault in paths.items()]
    return {"count": len(first), "first": first}


def report(*sets, **changes):
    values = {
        "run": "r",
        "is_done": True,
        "is_whole": True,
        "is_as_stored": changes.get("is_whole", True),
        "bytes_read": 33_000_000,
        "size_bytes": 33_000_000,
        "error": "",
        "sets": list(sets),
    }
    return values | changes


def set_report(host="algo-1", number=12, **changes):
    values = {
        "host": host,
        "number": number,
        "fault": "",
        "num_files": 4,
        "size_bytes": 1,
        "num_read": 4,
        "is_done": True,
        "wrong": findings(),
        "plain": findings(),
        "evidence": {"closed": 4},
        "least_rest_s": 0.0,
        "doubtful": [],
    }
    return values | changes


def test_sets_are_a_table_with_age_size_attempt_and_state():
    text = checkpoints.listing("demo", page(entry(), entry("algo-2", 9, attempt=2)), now=NOW)
    rows = [line.split() for line in text.splitlines()]
    assert rows[0] == ["HOST", "SET", "TAKEN", "AGE", "FILES", "SIZE", "ATTEMPT", "EVIDENCE", "STATE"]
    taken = (NOW - timedelta(seconds=5)).astimezone()
    assert rows[1] == f"algo-1 12 {taken:%Y-%m-%d %H:%M:%S} 5.0 s 4 16.5 MB 1 4 closed whole".split()
    assert rows[2][-4:] == ["2", "4", "closed", "whole"]


def test_a_set_of_another_job_and_a_damaged_set_are_marked():
    other = set_row(entry(job_arn="arn:x:training-job/be\x1bfore"), job_arn=entry()["job_arn"], now=NOW)
    assert other[6] == "1 of be\\x1bfore"
    damaged = entry(state="damaged", fault="no manifest\n\x1b[31m", taken_at=None)
    assert set_row(damaged, job_arn="", now=NOW)[2:] == ("-",) * 6 + ("damaged: no manifest\\n\\x1b[31m",)


@pytest.mark.parametrize("taken", ["0001-01-01T00:00:00+00:00", "9999-12-31T23:59:59+00:00"])
def test_times_at_the_ends_of_the_calendar_are_shown(taken, monkeypatch):
    for zone in ("EAST-14", "WEST+12"):
        monkeypatch.setenv("TZ", zone)
        time.tzset()
        assert set_row(entry(taken_at=taken), job_arn="", now=NOW)[0] == "algo-1"
    monkeypatch.undo()
    time.tzset()


def test_the_list_reports_that_no_set_exists_or_that_sets_are_left_out():
    assert checkpoints.listing("demo", page(), now=NOW) == "no set of checkpoints of demo below s3://b/ckpt yet"
    assert checkpoints.listing("demo", page(entry(), num_left_out=3), now=NOW).endswith("\nand 3 older sets")


def test_late_stalled_and_unfinished_hosts_are_listed_below_the_table():
    facts = {
        "set_number": 12,
        "committed_at": (NOW - timedelta(seconds=3)).isoformat(),
        "dirty_files": 2,
        "dirty_bytes": 1_200_000,
        "lag_s": 130,
        "stalled_since": (NOW - timedelta(minutes=2)).isoformat(),
        "error": "the store\x1b[0m is away",
        "missed": ["a.pt", "b\n.pt", "c", "d", "e", "f", "g"],
    }
    (line,) = mirror_lines({"algo-1": facts}, now=NOW)
    assert line == (
        "algo-1: set 12, committed 3.0 s ago; 2 files (1.2 MB) changed since, for 2m 10s; STALLED, began 2m 00s ago; "
        "last error: the store\\x1b[0m is away; NOT STORED at the end: a.pt, b\\n.pt, c, d, e and 2 more"
    )
    assert checkpoints.listing("demo", page(entry(), hosts={"algo-1": facts}), now=NOW).endswith(line)


def test_a_host_with_few_facts_is_shown():
    assert mirror_lines({"algo-1": {}}, now=NOW) == ["algo-1: no set yet; nothing to store"]
    assert mirror_lines({"algo-1": to_plain(CheckpointFacts())}, now=NOW) == ["algo-1: no set yet; nothing to store"]
    restored = {"set_number": 3, "restored_set": 2, "restored_files": 1, "restored_bytes": 10}
    assert mirror_lines({"algo-1": restored}, now=NOW) == [
        "algo-1: set 3; nothing changed since; began from set 2 with 1 file, 10 B"
    ]


def test_describe_has_a_line_a_host_on_checkpoints():
    facts = {"name": "job", "status": "s", "secondary_status": "t", "state": "s", "transitions": [], "hosts": []}
    assert "checkpoints" not in describe(facts)
    text = describe(facts | {"checkpoints": {"algo-1": {"set_number": 3}}})
    assert "\ncheckpoints\n  algo-1: set 3; nothing changed since" in text


def test_a_list_is_printed_as_table_or_json(monkeypatch, capsys):
    code, fake = command(monkeypatch, [page(entry())], "demo")
    assert (code, fake.asked) == (0, [("demo", "checkpoints", {})])
    assert capsys.readouterr().out.startswith("HOST ")
    code, _ = command(monkeypatch, [page(entry(host="al\x1bgo"))], "demo", "--json")
    said = capsys.readouterr().out
    assert json.loads(said)["sets"][0]["number"] == 12
    assert "\x1b" not in said


def test_verify_polls_until_the_run_has_ended_and_passes_host_and_set(monkeypatch, capsys):
    unfinished = report(set_report(is_done=False), is_done=False, is_whole=False)
    code, fake = command(
        monkeypatch, [unfinished, unfinished, report(set_report())], "verify", "demo", "--host", "algo-1", "--set", "12"
    )
    assert code == 0
    assert [asked[2] for asked in fake.asked] == [
        {"verify": "1", "host": "algo-1", "set": "12"},
        {"verify": "1", "run": "r"},
        {"verify": "1", "run": "r"},
    ]
    assert capsys.readouterr().out == "whole: 1 set, 4 files, 33.0 MB read; 4 files closed by the writer\n"


def test_every_wrong_file_has_a_line_and_the_last_line_is_the_verdict(monkeypatch, capsys):
    bad = set_report(wrong=findings(**{"a.pt": "is missing", "b\x1b[2J": "has 1 bytes, expected 2"}))
    bad["wrong"]["count"] = 5
    sets = [
        bad,
        set_report("algo-2", 3, fault="cut \x07short"),
        set_report("algo-3", 1, plain=findings(c="is missing")),
    ]
    code, _ = command(monkeypatch, [report(*sets, is_whole=False)], "verify", "demo")
    assert code == 1
    assert capsys.readouterr().out.splitlines() == [
        "algo-1 set 12: a.pt: is missing",
        "algo-1 set 12: b\\x1b[2J: has 1 bytes, expected 2",
        "algo-1 set 12: 3 more files, wrong",
        "algo-2 set 3: damaged: cut \\x07short",
        "algo-3 set 1: not part of a restore: c: is missing",
        "not whole: algo-1 set 12, algo-2 set 3 (3 sets, 12 files, 33.0 MB read; "
        "beside the sets, 1 plain file missing or different, no harm to a restore)",
    ]


def test_content_under_a_separate_key_is_shown_with_the_key():
    item = {"path": "a", "key": ".clary-checkpoints/algo-1/files/ab", "fault": "is missing"}
    bad = set_report(wrong={"count": 1, "first": [item]})
    (line,) = checkpoints.finding_lines(report(bad, is_whole=False))
    assert line == "algo-1 set 12: a (.clary-checkpoints/algo-1/files/ab): is missing"


def test_a_verification_that_ended_early_is_not_whole():
    line = verdict_line(report(set_report(is_done=False), is_whole=False, error="the store is away"))
    assert line == "not whole: ended early: the store is away (1 set, 4 files, 33.0 MB read)"


def test_plain_files_that_differ_leave_the_verdict_whole(monkeypatch, capsys):
    code, _ = command(monkeypatch, [report(set_report(plain=findings(c="is missing")))], "verify", "demo")
    assert code == 0
    assert (
        capsys.readouterr()
        .out.splitlines()[-1]
        .startswith("whole: 1 set, 4 files, 33.0 MB read; 4 files closed by the writer; beside the sets, 1")
    )


def test_a_job_that_is_called_verify_can_be_listed_and_verified(monkeypatch):
    assert command(monkeypatch, [page()], "verify")[1].asked[0][:2] == ("verify", "checkpoints")
    assert command(monkeypatch, [report()], "verify", "verify")[1].asked[0][0] == "verify"


@pytest.mark.parametrize("words", [("a", "b"), ("verify", "a", "b"), ("a", "--set", "1"), ("a", "--host", "algo-1")])
def test_arguments_that_do_not_fit_together_are_wrong_usage(words, monkeypatch, capsys):
    code, fake = command(monkeypatch, [], *words)
    assert (code, fake.asked) == (2, [])
    assert "verify" in capsys.readouterr().err


@pytest.mark.parametrize("number", ["-1", "x", "1.5", "\u0661", ""])
def test_a_set_is_a_number(number, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["checkpoints", "verify", "demo", f"--set={number}"])
    assert ended.value.code == 2
    assert "is not the number of a set" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (999_949, "999.9 kB"), (999_960, "1.0 MB"), (16_500_000, "16.5 MB")],
)
def test_sizes_have_three_digits_and_a_unit(num_bytes, text):
    assert size(num_bytes) == text


def test_a_size_that_no_disk_has_is_still_a_text():
    assert size(10**30).endswith(" EB")


def test_names_are_printed_on_one_line_without_control_or_bidi_characters():
    hostile = "a\x1b]0;title\x07\n\r\x00\u202egnp.exe\x9b\udcff"
    shown = printable(hostile)
    assert shown.isprintable()
    assert shown.startswith("a\\x1b]0;title\\x07\\n\\r\\x00\\u202egnp.exe")
    assert printable("gr\u00fc\u00dfe") == "gr\u00fc\u00dfe"
    assert len(printable("x" * 10_000)) < 400


def test_a_set_without_evidence_better_than_rest_is_never_called_whole(monkeypatch, capsys):
    rested = set_report(evidence={"closed": 3, "rested": 1}, least_rest_s=43.2, doubtful=["a\x1b.pt"])
    old = set_report("algo-2", evidence={"": 6}, doubtful=["a", "b", "c", "d", "e", "f"])
    verdict = {"is_whole": False, "is_as_stored": True}
    code, _ = command(monkeypatch, [report(rested, old, **verdict)], "verify", "demo")
    assert code == 0, "the bytes are as they were stored"
    assert capsys.readouterr().out.splitlines() == [
        "algo-1 set 12: nothing said so of 1 file but 43 s of rest: a\\x1b.pt",
        "algo-2 set 12: the manifest says nothing of 6 files, as those of earlier releases: a, b, c, d, e and 1 more",
        "complete as stored; wholeness not known: nothing said so of 1 file but 43 s of rest; the manifest "
        "says nothing of 6 files, as those of earlier releases (2 sets, 8 files, 33.0 MB read; 3 files closed by the "
        "writer)",
    ]
    lacking = set_report(evidence={"closed": 3, "left-out": 2}, doubtful=["run/log", "ck/"])
    command(monkeypatch, [report(lacking, **verdict)], "verify", "demo")
    assert capsys.readouterr().out.splitlines() == [
        "algo-1 set 12: it may lack something of 2 files or folders that had changed: run/log, ck/",
        "complete as stored; wholeness not known: it may lack something of 2 files or folders that had changed "
        "(1 set, 4 files, 33.0 MB read; 3 files closed by the writer)",
    ]
    row = set_row(entry(evidence={"closed": 3, "rested": 1}, least_rest_s=43.2), job_arn=entry()["job_arn"], now=NOW)
    assert row[7] == "3 closed, 1 rested for 43 s"
    row = set_row(entry(evidence={"closed": 3, "left-out": 2}), job_arn=entry()["job_arn"], now=NOW)
    assert row[7] == "3 closed, 2 left-out"
    assert set_row(entry(evidence={"": 4}), job_arn=entry()["job_arn"], now=NOW)[7] == "4 unknown"
