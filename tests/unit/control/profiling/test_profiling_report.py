"""The report is one page without links to other files, safe for any job name, host name and measurement."""

import json
import math
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser

import pytest
from profiled_runs import run, run_with_pauses, series, steady_gpus, without_gpus

from clary.contract.agent_protocol import HostPhase
from clary.control.profiling.measurements import HostShape, measurements_of
from clary.control.profiling.report.drawing import Line, Span, chart, nice_top, number, span_words, text, thinned
from clary.control.profiling.report.facts import ReportFacts, ReportHost, RuleResult
from clary.control.profiling.report.page import documents, files, render
from clary.control.profiling.report.sections import TIME_PARTS
from clary.control.profiling.rules import RULES
from clary.control.series.queries import Point, Series

NOW = datetime(2026, 1, 1, tzinfo=UTC)
VOID = {"meta", "line", "rect", "path", "circle", "br", "i"}
HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>&\x00\ud800"


class Page(HTMLParser):
    """Checks that tags are balanced, and collects attributes and texts."""

    def __init__(self, page):
        super().__init__(convert_charrefs=True)
        self.open, self.tags, self.attributes, self.texts = [], [], [], []
        self.feed(page)
        self.close()
        assert self.open == [], self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag):
        assert self.open, tag
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


def facts(measurements, **members):
    hosts = [
        ReportHost(
            name=host.name,
            instance_type="ml.g5.12xlarge",
            num_cpus=host.num_cpus,
            num_gpus=host.num_gpus,
            num_processes=2,
            seconds={"productive": 900.0, "uploading": 10.0},
        )
        for host in measurements.hosts
    ]
    defaults = {
        "job_name": "job",
        "status": "Completed",
        "secondary_status": "Completed",
        "image": "image:1",
        "created_at": NOW,
        "ended_at": NOW + timedelta(seconds=910),
        "written_at": NOW,
        "wall_s": 910.0,
        "goodput": 0.98,
        "seconds": {"productive": 900.0, "uploading": 10.0},
        "hosts": hosts,
    }
    return ReportFacts(**{**defaults, **members})


def results_of(measurements):
    return [RuleResult(rule=rule(), verdict=rule().judge(measurements)) for rule in RULES.values()]


@pytest.fixture(scope="module")
def measured():
    return steady_gpus(rows=1600)


@pytest.mark.parametrize("make", [steady_gpus, run_with_pauses, without_gpus])
def test_a_report_is_balanced_html_without_external_resources(make):
    measurements = make(rows=1600)
    page = render(facts(measurements), measurements, results_of(measurements))
    read = Page(page)
    assert "script" not in read.tags
    assert not {"link", "img", "iframe", "object", "embed", "form"} & set(read.tags)
    assert not re.search(r"https?:|//[a-z]|url\(|@import|data:", page)
    assert [value for tag, name, value in read.attributes if name == "href"] == [
        "#rules",
        "#time",
        "#steps",
        "#usage",
        "#hosts",
    ]
    assert not [name for _, name, _ in read.attributes if name.startswith("on")]
    assert "default-src 'none'" in page
    assert len(page) < 600_000


def test_each_part_of_a_host_s_time_has_its_own_colour_in_bar_and_legend(measured):
    seconds = {name: 10.0 for name in TIME_PARTS if name != "other"} | {"queued": 3.0}
    hosts = [replace(host, seconds=seconds) for host in facts(measured).hosts[:1]]
    page = render(facts(measured, hosts=hosts, seconds=seconds), measured, results_of(measured))
    section = page.partition('<section id="time">')[2].partition("</section>")[0]
    bar = dict(re.findall(r'<rect class="f(\d)"[^>]*><title>(\w+):', section))
    legend = dict(re.findall(r'<i class="b(\d)"></i>([^<]+)<', section))
    assert len(legend) == len(TIME_PARTS)
    assert bar == {colour: name.replace(" ", "_") for colour, name in legend.items()}
    colours = {scheme: set(re.findall(r"--s\d:(#\w+)", scheme)) for scheme in page.partition("@media")[::2]}
    assert all(len(found) >= len(TIME_PARTS) for found in colours.values())
    assert all(f".b{colour}{{" in page and f".f{colour}{{" in page for colour in legend)


def test_a_report_names_every_rule_every_host_and_every_measurement(measured):
    read = Page(render(facts(measured), measured, results_of(measured)))
    said = " ".join(read.texts)
    for name in (*RULES, "algo-1", "algo-2", "Processors", "GPU utilisation", "Network", "Where the time went"):
        assert name in said, name
    assert "No rule found anything" in said
    charts = [value for tag, name, value in read.attributes if tag == "svg" and name == "aria-label"]
    assert any(words.startswith("Processors: mean") for words in charts)
    assert any(words.startswith("median") for words in charts)


def test_a_rule_that_fires_is_first_with_evidence_and_advice():
    measurements = steady_gpus(**{"gpu-1/utilisation_percent": lambda host, row: 20.0})
    page = render(facts(measurements), measurements, results_of(measurements))
    said = " ".join(Page(page).texts)
    assert "LowGPUUtilization" in said[said.index("rules found something") :][:120]
    assert page.index("<h3>LowGPUUtilization") < page.index("IOBottleneck")
    assert RULES["LowGPUUtilization"].advice in said
    assert "algo-2 gpu-1" in said


def test_an_earlier_finding_is_reported_though_it_no_longer_holds(measured):
    results = [
        RuleResult(
            rule=RULES["LowGPUUtilization"](), verdict=RULES["LowGPUUtilization"]().judge(measured), earlier="was low"
        )
    ]
    said = " ".join(Page(render(facts(measured), measured, results)).texts)
    assert "While the job ran: was low" in said
    assert json.loads(next(iter(documents(results).values())))["RuleTriggered"] == 1


def test_hostile_names_are_shown_as_text():
    columns = {"host/cpu_percent": lambda host, row: 50.0, "rank-0/step_s": lambda host, row: 0.2}
    measurements = run(columns, rows=1200, hosts=(HOSTILE,))
    page = render(
        facts(
            measurements,
            job_name=HOSTILE,
            image=HOSTILE,
            environment=HOSTILE,
            failure_reason=HOSTILE,
            status=HOSTILE,
            damaged=[HOSTILE],
            seconds={HOSTILE: 4.0},
            version=HOSTILE,
            straggler=HOSTILE,
            straggler_evidence=[HOSTILE],
        ),
        measurements,
        results_of(measurements),
    )
    page.encode()
    read = Page(page)
    assert "script" not in read.tags
    assert "img" not in read.tags
    assert not [name for _, name, _ in read.attributes if name == "onerror"]
    assert "\x00" not in page
    assert "<script>alert(1)</script>" in "".join(read.texts), "as text"


def test_values_that_are_no_numbers_leave_gaps_in_a_valid_page():
    points = tuple(Point(row * 500, math.nan, math.inf, math.nan, 1.0, math.nan) for row in range(20))
    broken = series("algo-1", "host/cpu_percent", [50.0] * 40)
    measurements = measurements_of(
        [
            broken,
            series("algo-1", "host/phase", [3.0] * 40),
            type(broken)(host="algo-1", name="host/memory_percent", points=points),
        ],
        [HostShape(name="algo-1", num_cpus=2.0)],
        step_ms=500,
        until_ms=20_000,
        is_over=True,
    )
    page = render(facts(measurements), measurements, results_of(measurements))
    drawn = "".join(re.findall(r' d="([^"]*)"', page))
    assert "nan" not in drawn
    assert "inf" not in drawn
    json.loads(documents(results_of(measurements))["profiler-reports/OverallSystemUsage.json"])


def test_the_report_of_a_job_without_measurements_states_the_lack():
    nothing = measurements_of([], [HostShape(name="algo-1", num_cpus=2.0)], step_ms=500, until_ms=0, is_over=True)
    said = " ".join(Page(render(facts(nothing), nothing, results_of(nothing))).texts)
    assert "Nothing was measured while the program ran" in said
    assert "No steps were measured" in said


def test_a_straggler_is_named_next_to_the_steps(measured):
    said = " ".join(
        Page(
            render(
                facts(measured, straggler="rank 1 is slow", straggler_evidence=["its disk"], has_straggler=True),
                measured,
                results_of(measured),
            )
        ).texts
    )
    assert "rank 1 is slow" in said
    assert "its disk" in said


def test_hundreds_of_ranks_are_truncated_and_the_page_shows_how_many_are_left_out():
    columns = {}
    for rank in range(80):
        columns[f"rank-{rank}/step_s"] = lambda host, row: 0.2
        columns[f"rank-{rank}/cpu_percent"] = lambda host, row: 90.0
    measurements = run(columns, rows=150)
    page = render(facts(measurements), measurements, results_of(measurements))
    assert "16 more ranks are not shown" in page
    assert len(page) < 3_000_000


def test_the_files_of_a_report_are_one_page_and_one_document_per_rule(measured):
    made = files(facts(measured), measured, results_of(measured))
    assert set(made) == {"profiler-report.html", *(f"profiler-reports/{name}.json" for name in RULES)}
    low = json.loads(made["profiler-reports/LowGPUUtilization.json"])
    assert low["RuleTriggered"] == 0
    assert "threshold_p95:70" in low["RuleParameters"]


def test_a_line_has_at_most_one_point_per_column_and_keeps_the_peak():
    points = [Point(at, 0.0, 900.0 if at == 7_777 else 1.0, 1.0, 1.0, 1.0) for at in range(10_000)]
    span = Span(start_ms=0, end_ms=10_000)
    assert len(thinned(points, span)) == 240
    assert max(point.greatest for point in thinned(points, span)) == 900.0
    assert "peak 900" in chart("x", "%", [Line(label="", points=points)], span)
    assert chart("x", "%", [Line(label="", points=[])], span) == ""


@pytest.mark.parametrize(
    ("peak", "top"), [(0, 1), (0.3, 0.5), (1, 1), (23, 25), (260, 500), (math.inf, 1), (math.nan, 1)]
)
def test_scales_end_at_round_numbers(peak, top):
    assert nice_top(peak) == pytest.approx(top)


def test_numbers_and_times_are_formatted_for_readers():
    assert [number(value) for value in (0.1234, 12.34, 123.4, math.nan)] == ["0.123", "12.3", "123", "-"]
    assert [span_words(value) for value in (0, 2.34, 45, 75, 900, 7200, 7265)] == [
        "0 s",
        "2.3 s",
        "45 s",
        "1 min 15 s",
        "15 min",
        "2 h",
        "2 h 1 min",
    ]
    assert text("a<b>\x01'") == "a&lt;b&gt;\N{REPLACEMENT CHARACTER}&#x27;"


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e308, 1e-320, -1.0])
def test_impossible_values_break_neither_rules_nor_the_report(value):
    names = ("rank-0/step_s", "rank-0/step_max_s", "rank-0/steps", "rank-0/num_processes", "gpu-0/memory_percent")
    running = float(list(HostPhase).index(HostPhase.RUNNING))
    odd = Point(500, value, value, value, 1, value)
    even = Point(1000, 0.5, 0.5, 0.5, 1, 0.5)
    measured_series = [Series(host="algo-1", name=name, points=(odd, even)) for name in names]
    measured_series.append(Series(host="algo-1", name="rank-1/step_s", points=(odd,)))
    phases = tuple(Point(at_ms, running, running, running, 1, running) for at_ms in (500, 1000))
    measured_series.append(Series(host="algo-1", name="host/phase", points=phases))
    shapes = [HostShape(name="algo-1", num_cpus=2.0)]
    measured = measurements_of(measured_series, shapes, step_ms=500, until_ms=1500, is_over=True)
    results = [RuleResult(rule=rule(), verdict=rule().judge(measured)) for rule in RULES.values()]
    for result in results:
        json.dumps({where: dict(numbers) for where, numbers in result.verdict.figures.items()}, allow_nan=False)
    Page(render(facts(measured), measured, results))
