"""`clary top`: rows, their cut to the screen, keys, and one table for pipes."""

import contextlib
import itertools
import json
import os
import pty
import select
import subprocess
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clary.base.errors import ClaryError
from clary.cli import top
from clary.cli.top_words import HEADER, JobRow, job_row, moved, screen


def facts(name="job", **changes):
    host = {"name": "algo-1", "phase": "RUNNING", "standstill": ""}
    page = {
        "name": name,
        "status": "InProgress",
        "secondary_status": "Training",
        "state": "Running",
        "queue": None,
        "hosts": [host, {**host, "name": "algo-2", "standstill": "no rank has moved\nfor 5 minutes"}],
        "past_attempts": [],
        "pending_reason": "",
        "metrics": [
            {"name": "loss", "value": 0.12345, "at": "2026-01-01T00:00:02Z"},
            {"name": "acc", "value": 0.5, "at": "2026-01-01T00:00:01Z"},
        ],
    }
    return {**page, **changes}


def series(**values):
    """Return a page of series; the name of a value is host__name, with _ for - and __ for /."""
    found = [
        {
            "host": host,
            "name": name,
            "points": [[0, 1, 1, 1, 1, 1], [1, value, value, value, 1, value], [2] + [None] * 5],
        }
        for (host, name), value in values.get("of", {}).items()
    ]
    return {"age_s": 75.0, "series": found}


BUSY = series(
    of={
        ("algo-1", "host/cpu_percent"): 150.0,
        ("algo-2", "host/cpu_percent"): 50.0,
        ("algo-1", "host/memory_bytes"): 2e9,
        ("algo-1", "gpu-0/utilisation_percent"): 90.0,
        ("algo-2", "gpu-0/utilisation_percent"): 70.0,
    }
)


QUEUED = {"state": "Queued", "secondary_status": "Pending"}
PLACE = {"place": 3, "num_waiting": 205, "start_in_s": None, "basis": "unknown", "estimate": "no job has ended yet"}


def cells(row):
    return dict(zip(HEADER, row, strict=True))


def test_a_row_combines_its_hosts_and_shows_the_latest_values():
    row = job_row(facts(progress={"percent": 45.2, "eta_s": 90, "done": 1, "unit": "steps"}), BUSY)
    assert cells(row.cells) == {
        "NAME": "job",
        "STATUS": "Running",
        "PHASE": "Training",
        "AGE": "1m 15s",
        "PROGRESS": "45 %, 1m 30s left",
        "CPU": "200 %",
        "MEMORY": "2 GB",
        "GPU": "80 %",
        "LAST METRIC": "loss=0.1235",
        "RESTARTS": "0",
        "WAITS FOR": "-",
    }
    first, second = (cells(host) for host in row.hosts)
    assert (first["NAME"], first["CPU"], first["GPU"]) == ("  algo-1", "150 %", "90 %")
    assert (second["MEMORY"], second["WAITS FOR"]) == ("-", "no rank has moved for 5 minutes")


def test_unknown_values_are_dashes():
    waiting = facts(hosts=[], metrics=[], **QUEUED, pending_reason="0 of 2 hosts are free " * 5)
    row = cells(job_row(waiting, {}).cells)
    assert (row["AGE"], row["PROGRESS"], row["CPU"], row["MEMORY"], row["GPU"], row["LAST METRIC"]) == ("-",) * 6
    assert row["WAITS FOR"].endswith("...")
    assert len(row["WAITS FOR"]) == 60


def test_a_waiting_job_is_shown_as_queued_with_its_place():
    row = job_row(facts(hosts=[], metrics=[], **QUEUED, queue=PLACE, pending_reason="0 of 2 hosts are free."), {})
    assert cells(row.cells)["STATUS"] == "Queued"
    assert cells(row.cells)["WAITS FOR"].startswith("place 3 of 205, start unknown")
    assert (row.facts["state"], row.facts["queue"]["place"]) == ("Queued", 3)


def test_progress_without_a_total_counts():
    row = job_row(facts(progress={"percent": None, "eta_s": None, "done": 450.0, "unit": "steps"}), {})
    assert cells(row.cells)["PROGRESS"] == "450 steps"


def plain_rows(count, num_hosts=1):
    return [
        JobRow(cells=(f"job-{index}", *["x"] * 10), hosts=tuple((f"  algo-{n}", *["y"] * 10) for n in range(num_hosts)))
        for index in range(count)
    ]


@given(st.integers(0, 30), st.integers(0, 29), st.integers(1, 30), st.integers(1, 200), st.sets(st.integers(0, 29)))
def test_the_selected_job_is_always_on_a_screen_with_room(count, chosen, height, width, opened):
    rows = plain_rows(count)
    name = f"job-{min(chosen, max(0, count - 1))}"
    names = frozenset(f"job-{index}" for index in opened)
    lines = screen(rows, opened=names, chosen=name, width=width, height=height, head="head")
    assert len(lines) <= height
    assert all(len(line) <= width for line, _ in lines)
    if count and height >= 3:
        assert any(is_chosen and line == line[:width] for line, is_chosen in lines)


@given(st.lists(st.text("abc", min_size=1), unique=True), st.text("abc"), st.integers(-3, 3))
def test_the_selection_never_leaves_the_list(names, chosen, by):
    found = moved(names, chosen, by)
    assert found in names if names else found == ""


class FakeScreen:
    """A window with prepared keys; records the lines drawn last."""

    def __init__(self, keys, *, size=(20, 120)):
        self._keys = iter(keys)
        self._size = size
        self.drawn = []
        self.frames = []

    def getch(self):
        self.frames.append(list(self.drawn))
        key = next(self._keys)
        return ord(key) if isinstance(key, str) else key

    def getmaxyx(self):
        return self._size

    def erase(self):
        self.drawn = []

    def addnstr(self, line, column, text, count, attribute):
        self.drawn.append((text[:count], attribute != top.curses.A_NORMAL))

    def refresh(self):
        pass

    def chosen(self, frame):
        return [line.split()[0] for line, is_chosen in self.frames[frame] if is_chosen]


def test_keys_select_open_close_and_quit():
    window = FakeScreen(["j", "j", "j", "k", "\n", "\n", "q"])
    top.watch(window, lambda: (plain_rows(3), 3), clock=lambda: 0.0)
    chosen = [window.chosen(frame) for frame in range(7)]
    assert chosen == [["job-0"], ["job-1"], ["job-2"], ["job-2"], ["job-1"], ["job-1", "algo-0"], ["job-1"]]


def test_rows_are_refreshed_every_two_seconds_and_an_unreachable_service_is_shown():
    times = itertools.count(0.0, 0.5)
    reads = []

    def read():
        reads.append(1)
        if len(reads) == 2:
            raise ClaryError("the service does not answer")
        return plain_rows(len(reads)), len(reads)

    window = FakeScreen([-1] * 12 + ["q"])
    top.watch(window, read, clock=lambda: next(times))
    heads = [frame[0][0] for frame in window.frames]
    assert len(reads) >= 3
    assert "the service does not answer" in heads
    assert heads[-1].endswith("q quit")
    away = heads.index("the service does not answer")
    assert window.frames[away][2][0].startswith("job-0"), "what was known stays"


def test_the_selection_moves_to_another_job_when_its_job_is_gone():
    lists = iter([plain_rows(2), plain_rows(1)])
    times = itertools.count(0.0, 3.0)
    window = FakeScreen(["j", -1, "q"])
    last = []

    def read():
        nonlocal last
        last = next(lists, last)
        return last, len(last)

    top.watch(window, read, clock=lambda: next(times))
    assert window.chosen(-1) == ["job-0"]
    assert [frame[0][0].split("   ")[0] for frame in window.frames] == ["2 jobs", "1 job", "1 job"]


@pytest.mark.parametrize("size", [(1, 1), (2, 5), (3, 20)])
def test_a_screen_of_any_size_is_drawn_on(size):
    window = FakeScreen(["q"], size=size)
    top.watch(window, lambda: (plain_rows(5), 5), clock=lambda: 0.0)
    assert len(window.frames[0]) <= size[0]


def test_a_line_that_the_terminal_refuses_is_lost_alone():
    """Curses raises if a line ends beyond the window, which may have shrunk, or may hold letters two columns wide."""

    class FakeNarrowScreen(FakeScreen):
        def addnstr(self, line, column, text, count, attribute):
            if line == 1:
                raise top.curses.error("addnwstr() returned ERR")
            super().addnstr(line, column, text, count, attribute)

    window = FakeNarrowScreen(["q"])
    top.watch(window, lambda: (plain_rows(2), 2), clock=lambda: 0.0)
    assert [text.split()[0] for text, _ in window.frames[0]] == ["2", "job-0", "job-1"]


def test_a_job_that_moves_between_two_lists_is_shown_once():
    rows, total = top.read_rows(FakeConnection({"Starting": ["job"], "Running": ["job"]}))
    assert ([row.name for row in rows], total) == (["job"], 1)


def test_rows_that_do_not_fit_are_counted_and_jobs_with_hosts_are_first(monkeypatch, capsys):
    queued = [f"waits-{number}" for number in range(205)]
    fake = FakeConnection({"Queued": queued, "Running": ["runs"], "Starting": ["starts"], "Stopping": ["stops"]})
    rows, total = top.read_rows(fake)
    assert [row.name for row in rows] == ["runs", "starts", "stops", *queued[:47]]
    assert total == 208
    window = FakeScreen(["q"])
    top.watch(window, lambda: (rows, total), clock=lambda: 0.0)
    assert window.frames[0][0][0].startswith("50 of 208 jobs ")
    monkeypatch.setattr(top, "connect", lambda: fake)
    top.run(top.argparse.Namespace(json=False, once=True))
    assert capsys.readouterr().out.splitlines()[-1] == "50 of 208 jobs; clary jobs lists all"
    top.run(top.argparse.Namespace(json=True, once=False))
    told = capsys.readouterr()
    assert len(json.loads(told.out)) == 50
    assert told.err == "clary: 50 of 208 jobs; clary jobs --json lists all\n"


PROGRAM = """
import curses, sys
from clary.cli import top
from clary.cli.top_words import JobRow
rows = [JobRow(cells=(f"job-{index}", *["x"] * 10)) for index in range(3)]
curses.wrapper(lambda window: top.watch(top._prepared(window), lambda: (rows, 3)))
print("left cleanly")
"""


@contextlib.contextmanager
def on_terminal(text, *, term):
    """Run a program on a terminal of a kind; yield our side of the terminal, and the process."""
    ours, theirs = pty.openpty()
    program = subprocess.Popen(
        [sys.executable, "-c", text],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "TERM": term, "LINES": "24", "COLUMNS": "120"},
    )
    os.close(theirs)
    try:
        yield ours, program
    finally:
        program.kill()
        program.wait()
        os.close(ours)


@pytest.mark.parametrize("term", ["xterm", "ansi", "vt52"])  # the last two cannot hide the cursor
def test_top_draws_on_a_real_terminal_and_quits_on_q(term):
    with on_terminal(PROGRAM, term=term) as (ours, program):
        assert "job-2" in read_until(ours, "job-2")
        os.write(ours, b"q")
        assert "left cleanly" in read_until(ours, "left cleanly")
        assert program.wait(timeout=60) == 0


PLAIN = """
import argparse
from types import SimpleNamespace
from clary.cli import top
page = {"jobs": [], "total": 0}
top.connect = lambda: SimpleNamespace(get=lambda path, query: page)
print("code", top.run(argparse.Namespace(json=False, once=False)))
"""


RESTARTED = """
import argparse
from types import SimpleNamespace
from clary.cli import top
now = SimpleNamespace(get=lambda path, query: {"jobs": [], "total": 7})
top.connect = lambda: SimpleNamespace(again=lambda: now)
top.run(argparse.Namespace(json=False, once=False))
"""


def test_each_refresh_asks_the_service_as_it_runs_then():
    with on_terminal(RESTARTED, term="xterm") as (ours, program):
        assert "0 of 28 jobs" in read_until(ours, "0 of 28 jobs")
        os.write(ours, b"q")
        assert program.wait(timeout=60) == 0


@pytest.mark.parametrize(("term", "why"), [("no-such-kind", ""), ("dumb", "it cannot move its cursor")])
def test_on_a_terminal_that_cannot_be_drawn_on_one_table_is_printed_with_the_reason(term, why):
    with on_terminal(PLAIN, term=term) as (ours, _):
        text = read_until(ours, "code 0")
    assert f"clary: one table alone: this terminal ({term!r}, of TERM) cannot be drawn on: {why}" in text
    assert "no job runs or waits" in text
    assert "Traceback" not in text


def read_until(terminal, wanted, *, timeout_s=60):
    """Return a terminal's output until a text has appeared."""
    text = ""
    deadline = time.monotonic() + timeout_s
    while wanted not in text and time.monotonic() < deadline:
        if select.select([terminal], [], [], 0.2)[0]:
            text += os.read(terminal, 65536).decode(errors="replace")
    return text


class FakeConnection:
    """Acts as a service with one job, and with another that was just deleted."""

    def __init__(self, names=None):
        self._names = {"Running": ["job", "gone"]} if names is None else names

    def get(self, path, query):
        assert (path, query["order"]) == ("jobs", "asc")
        names = self._names.get(query["state"], [])
        return {"jobs": [{"name": name} for name in names[: query["limit"]]], "total": len(names)}

    def job_page(self, name, page="", query=None):
        if name == "gone":
            raise top.WireError("NotFound", "no such job")
        return BUSY if page == "series" else facts(name)


def test_json_and_a_pipe_get_everything_once(monkeypatch, capsys):
    monkeypatch.setattr(top, "connect", FakeConnection)
    options = top.argparse.Namespace(json=True, once=False)
    assert top.run(options) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["hosts"][0]["latest"]["host/cpu_percent"] == 150.0
    assert (found["age_s"], found["restarts"]) == (75.0, 0)
    assert top.run(top.argparse.Namespace(json=False, once=False)) == 0
    text = capsys.readouterr().out
    assert [line.split()[0] for line in text.splitlines()] == ["NAME", "job", "algo-1", "algo-2"]


def test_without_running_jobs_a_message_is_shown(monkeypatch, capsys):
    monkeypatch.setattr(top, "connect", lambda: FakeConnection({}))
    top.run(top.argparse.Namespace(json=False, once=True))
    assert capsys.readouterr().out == "no job runs or waits\n"


def test_a_screen_of_eighty_columns_omits_empty_columns():
    running = facts(progress={"percent": 56.0, "eta_s": 40.4, "done": 1, "unit": "steps"})
    running["hosts"] = running["hosts"][:1]
    rows = [job_row(running, series(of={("algo-1", "host/cpu_percent"): 182.0, ("algo-1", "host/memory_bytes"): 1e9}))]
    head, line, host = (
        text for text, _ in screen(rows, opened=frozenset(["job"]), chosen="job", width=80, height=9, head="")[1:]
    )
    assert head.split() == ["NAME", "STATUS", "AGE", "PROGRESS", "CPU", "MEMORY", "LAST", "METRIC"]
    assert line.split() == [
        "job",
        "Running",
        "1m",
        "15s",
        "56",
        "%,",
        "40.4",
        "s",
        "left",
        "182",
        "%",
        "1",
        "GB",
        "loss=0.1235",
    ]
    assert host.split() == ["algo-1", "RUNNING", "182", "%", "1", "GB"]
    wide = screen(rows, opened=frozenset(), chosen="job", width=200, height=9, head="")
    assert wide[1][0].split("  ")[0] == "NAME"
    assert wide[1][0].endswith("WAITS FOR")
    waiting = job_row(facts(hosts=[], metrics=[], **QUEUED, pending_reason="0 of 2 hosts are free"), {})
    narrow = screen([waiting], opened=frozenset(), chosen="job", width=80, height=9, head="")
    assert narrow[2][0].endswith("0 of 2 hosts are free")
