"""`clary metrics`: units, spark lines, plain text for pipes, JSON, and the token for Prometheus."""

import io
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from clary.cli import metrics
from clary.cli.connection import Connection
from clary.cli.main import main
from clary.cli.metric_words import SPARK_WIDTH, SPARKS, metrics_text, shown, spark, unit_of, words_of
from clary.control.series.queries import SeriesQuery

START_MS = 1_767_225_600_000
MINUTE_MS = 60_000


class FakeConnection(Connection):
    """Returns one page, and records the requests."""

    def __init__(self, page):
        settings = SimpleNamespace(home_folder=Path("/nonexistent"))
        self.__dict__.update(
            page=page, asked=[], secrets=SimpleNamespace(metrics_token="metrics-token"), settings=settings
        )

    def job_page(self, job, page="", query=None):
        self.asked.append((job, page, dict(query or {})))
        return self.page


def series(name, *means, host="algo-1"):
    points = [[START_MS + MINUTE_MS * i, mean - 1, mean + 1, mean, 120.0, mean] for i, mean in enumerate(means)]
    return {"host": host, "name": name, "points": points}


def page(*found, **changes):
    return {
        "job": "demo",
        "status": "InProgress",
        "is_over": False,
        "age_s": 852.0,
        "since_ms": START_MS,
        "until_ms": START_MS + SPARK_WIDTH * MINUTE_MS,
        "step_ms": MINUTE_MS,
        "series": list(found),
        "num_dropped": 0,
        "damaged": [],
    } | changes


def command(monkeypatch, answer, *arguments):
    fake = FakeConnection(answer)
    monkeypatch.setattr(metrics, "connect", lambda: fake)
    return main(["metrics", *arguments]), fake


@pytest.mark.parametrize(
    ("number", "name", "text"),
    [
        (182.4, "host/cpu_percent", "182 %"),
        (0.25, "host/cpu_percent", "0.25 %"),
        (3.1e9, "host/memory_bytes", "3.1 GB"),
        (41.2e6, "host/network_received_bytes_s", "41 MB/s"),
        (0.0, "host/disk_read_bytes_s", "0 B/s"),
        (280.0, "gpu-0/power_w", "280 W"),
        (66.0, "gpu-0/temperature_c", "66 C"),
        (24.0, "rank-0/num_threads", "24"),
        (12.5, "step/forward_ms", "12 ms"),
        (1.52, "rank-0/step_s", "1.5 s"),
        (0.0042, "rank-0/forward_s", "4.2 ms"),
        (0.0, "rank-0/data_wait_s", "0 s"),
        (5e18, "host/memory_bytes", "5000 PB"),
    ],
)
def test_numbers_are_shown_with_their_unit(number, name, text):
    assert shown(number, unit_of(name)) == text


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("host/cpu_percent", "cpu"),
        ("host/memory_bytes", "memory"),
        ("host/memory_percent", "memory share"),
        ("host/disk_used_percent", "disk used share"),
        ("host/network_received_bytes_s", "network received"),
        ("rank-0/cpu_percent", "rank 0 cpu"),
        ("gpu-12/utilisation_percent", "gpu 12 utilisation"),
    ],
)
def test_series_have_readable_names(name, words):
    assert words_of(name) == words


def test_a_spark_line_goes_from_the_least_to_the_greatest_and_leaves_gaps_blank():
    points = series("host/x", *range(8))["points"]
    del points[2]
    assert spark(points, page()) == f"{SPARKS[:2]} {SPARKS[3:]}" + " " * 8
    assert spark(series("host/x", 5, 5)["points"], page()).strip() == SPARKS[3] * 2


def test_hosts_gpus_and_ranks_come_in_the_order_of_their_numbers():
    text = metrics_text(
        page(
            series("rank-10/cpu_percent", 1),
            series("rank-2/cpu_percent", 1),
            series("host/cpu_percent", 1),
            series("gpu-0/power_w", 1),
            series("host/cpu_percent", 1, host="algo-10"),
            series("host/cpu_percent", 1, host="algo-2"),
        ),
        lines=False,
    )
    rows = [line.split() for line in text.splitlines()[3:]]
    assert [(row[0], " ".join(row[1:-6])) for row in rows] == [
        ("algo-1", "cpu"),
        ("algo-1", "gpu 0 power"),
        ("algo-1", "rank 2 cpu"),
        ("algo-1", "rank 10 cpu"),
        ("algo-2", "cpu"),
        ("algo-10", "cpu"),
    ]


def test_the_table_for_pipes_has_no_spark_lines(monkeypatch, capsys):
    code, fake = command(monkeypatch, page(series("host/cpu_percent", 170, 190)), "demo")
    assert code == 0
    assert fake.asked == [("demo", "series", {"names": metrics.SHOWN})]
    assert capsys.readouterr().out.splitlines() == [
        "demo  InProgress, 14m 12s",
        "",
        "HOST    METRIC  LAST   MEAN   MAX",
        "algo-1  cpu     190 %  180 %  191 %",
    ]


def test_the_table_for_terminals_has_spark_lines():
    lines = metrics_text(page(series("host/cpu_percent", 170, 190)), lines=True).splitlines()
    assert lines[2].endswith("LAST 16M 00S")
    assert lines[3].endswith(SPARKS[0] + SPARKS[-1])


def test_missing_series_are_reported():
    assert "no host has measured anything" in metrics_text(page(), lines=True)
    text = metrics_text(page(series("host/x", 1), num_dropped=7, damaged=["block 3 is damaged"]), lines=False)
    assert "7 rows were given up" in text
    assert text.endswith("block 3 is damaged")


def test_unknown_names_are_reported_with_the_option_that_shows_all(monkeypatch, capsys):
    assert command(monkeypatch, page(), "demo", "--names", "cpu")[0] == 0
    assert capsys.readouterr().out.splitlines()[1] == (
        "no host has measured anything called cpu in these 16m 00s; --names '*' shows all that is measured"
    )
    command(monkeypatch, page(), "demo", "--names", "*")
    assert "called" not in capsys.readouterr().out


def test_training_metrics_belong_to_the_whole_job(monkeypatch, capsys):
    code, fake = command(monkeypatch, {}, "demo", "--training", "--host", "algo-2")
    assert (code, fake.asked) == (2, [])
    assert "leave out --host" in capsys.readouterr().err


def test_a_point_that_json_cannot_hold_is_skipped():
    found = series("host/cpu_percent", 170, 190)
    found["points"][1][3] = None
    assert "170 %" in metrics_text(page(found), lines=True)


def test_options_reach_the_service(monkeypatch, capsys):
    answer = page(series("host/cpu_percent", 1))
    code, fake = command(
        monkeypatch, answer, "demo", "--host", "algo-2", "--names", "host/*", "--since", "1h", "--json"
    )
    ((job, name, query),) = fake.asked
    assert (code, job, name, query["host"], query["names"]) == (0, "demo", "series", "algo-2", "host/*")
    assert query["until_ms"] - query["since_ms"] == pytest.approx(3_600_000, abs=60_000)
    assert json.loads(capsys.readouterr().out) == answer


def test_json_has_every_series_and_the_table_a_selection(monkeypatch, capsys):
    _, fake = command(monkeypatch, page(), "demo", "--json")
    assert fake.asked[0][2]["names"] == "*"
    shown = SeriesQuery(job_name="demo", names=metrics.SHOWN, start_ms=0, end_ms=1, step_ms=1)
    names = ("host/cpu_percent", "host/disk_read_bytes_s", "rank-3/memory_bytes", "host/disk_used_percent", "agent/x")
    assert [shown.wants(name) for name in names] == [True, True, True, False, False]


def test_the_token_for_prometheus_is_printed(monkeypatch, capsys):
    assert command(monkeypatch, page(), "--token")[0] == 0
    assert capsys.readouterr().out == "metrics-token\n"


def test_the_token_of_a_service_elsewhere_is_refused(monkeypatch, capsys):
    for name in ("CLARY_ADMIN_TOKEN", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x" * 20)
    monkeypatch.setenv("CLARY_URL", "https://gpu-room:4571")
    assert command(monkeypatch, page(), "--token")[0] == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "clary metrics --token acts on this machine" in said.err


def test_a_job_must_be_named(monkeypatch, capsys):
    assert command(monkeypatch, page())[0] == 2
    assert "clary metrics JOB" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("is_terminal", "encoding", "term", "draws"),
    [
        (True, "UTF-8", "xterm", True),
        (False, "UTF-8", "xterm", False),
        (True, "ascii", "xterm", False),
        (True, "utf-8", "dumb", False),
    ],
)
def test_spark_lines_are_for_terminals_that_show_them(monkeypatch, is_terminal, encoding, term, draws):
    monkeypatch.setenv("TERM", term)
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    monkeypatch.setattr(stream, "isatty", lambda: is_terminal)
    assert metrics.draws_lines(stream) is draws
