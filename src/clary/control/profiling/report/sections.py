"""The parts of a report, from top to bottom."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from clary.control.profiling.measurements import MS_PER_S, Measurements, Scope
from clary.control.profiling.quantiles import box_of, mean_of
from clary.control.profiling.report.drawing import (
    Line,
    Span,
    box_plot,
    chart,
    key_of,
    nice_top,
    number,
    span_words,
    stacked_bar,
    strips,
    text,
)
from clary.control.profiling.report.facts import ReportFacts, ReportHost, RuleResult
from clary.control.profiling.rules.usage import MIB, usages_of
from clary.control.series.queries import Point

MOST_HOSTS = 16  # hosts with charts of their own
MOST_RANKS = 64  # ranks that are shown, and hosts in the section on time
MOST_MARKS = 40  # marks in a chart
# Parts of the ledger that are shown by name, productive time first, then all other parts together; each has its own
# colour, so there are at most NUM_COLOURS parts.
TIME_PARTS = (
    "productive",
    "lost_to_restart",
    "lost_to_failure",
    "lost_to_stop",
    "checkpointing",
    "rendezvous",
    "downloading",
    "stalled",
    "uploading",
    "other",
)
STEP_PARTS = ("data wait", "forward", "backward", "communication", "optimizer", "other")
_SERIES_OF_PART = {name: f"{name.replace(' ', '_')}_s" for name in STEP_PARTS[:-1]}
_FULL = 100.0


def header(facts: ReportFacts, results: Sequence[RuleResult]) -> str:
    """Return the title, the job in figures, and the verdict of the rules in one sentence."""
    firing = [result.rule.name() for result in results if result.fires]
    judged = [result for result in results if result.verdict.was_judged]
    if firing:
        lead = f"{len(firing)} of {len(results)} rules found something: {', '.join(firing)}."
    else:
        lead = f"No rule found anything: {len(judged)} of {len(results)} had enough to judge."
    gpus = sum(host.num_gpus for host in facts.hosts)
    figures = [
        (facts.status, "status" if facts.status == facts.secondary_status else facts.secondary_status),
        (span_words(facts.wall_s), "from creation to end" if facts.ended_at else "so far"),
        (f"{100 * facts.goodput:.0f} %", "of host time was productive"),
        (str(len(facts.hosts)), "hosts" if len(facts.hosts) != 1 else "host"),
        (str(sum(host.num_processes for host in facts.hosts)), "training processes"),
        (str(gpus) if gpus else "none", "GPUs"),
    ]
    if facts.num_attempts > 1:
        figures.insert(2, (str(facts.num_attempts), "attempts"))
    cells = "".join(f"<div><b>{text(value)}</b><span>{text(name)}</span></div>" for value, name in figures)
    links = (("rules", "Rules"), ("time", "Time"), ("steps", "Steps"), ("usage", "Usage"), ("hosts", "Hosts"))
    nav = "".join(f'<a href="#{name}">{title}</a>' for name, title in links)
    failure = f'<p class="advice">{text(facts.failure_reason)}</p>' if facts.failure_reason else ""
    return (
        f'<header><p class="kicker">Profiler report</p><h1>{text(facts.job_name)}</h1>'
        f'<p class="soft small">created {_moment(facts.created_at)}, {text(facts.image) or "no image"}'
        f"{', ' + text(facts.environment) if facts.environment else ''}</p><nav>{nav}</nav></header>"
        f'<p class="lead">{text(lead)}</p>{failure}<div class="facts">{cells}</div>'
    )


def time(facts: ReportFacts) -> str:
    """Return the section on the use of each host's time."""
    if not facts.hosts or not facts.seconds:
        return ""
    rows = "".join(
        f"<tr><td>{text(host.name)}</td>"
        f'<td style="width:70%">{stacked_bar(_time_parts(host.seconds), facts.wall_s, TIME_PARTS)}</td>'
        f"<td>{span_words(sum(host.seconds.values()))}</td></tr>"
        for host in facts.hosts[:MOST_RANKS]
    )
    parts = "".join(
        f"<tr><td>{text(name.replace('_', ' '))}</td><td>{span_words(seconds)}</td>"
        f"<td>{100 * seconds / max(1e-9, sum(facts.seconds.values())):.1f} %</td></tr>"
        for name, seconds in facts.seconds.items()
    )
    more = _more(len(facts.hosts), MOST_RANKS, "hosts")
    return (
        '<section id="time"><h2>Where the time went</h2><p class="soft small">From the creation of the job; a part '
        "belongs to a host, so that hosts add up to hosts times wall time.</p>"
        f'<div class="card"><div class="scroll"><table>{rows}</table></div>'
        f"{key_of([name.replace('_', ' ') for name in TIME_PARTS])}{more}"
        f"<details><summary>all hosts together, in figures</summary><table>{parts}</table></details></div></section>"
    )


def steps(facts: ReportFacts, measurements: Measurements, span: Span) -> str:
    """Return the section of steps: their durations and parts, by rank; or a sentence that no step was measured.

    Args: as `hosts`.
    """
    ranks = [rank for rank in measurements.scopes("rank", "step_s") if measurements.of(rank, "step_s")]
    if not ranks:
        return (
            '<section id="steps"><h2>Steps</h2><p class="soft">No steps were measured: the program has no optimiser '
            "that Clary knows, or measuring steps was switched off.</p></section>"
        )
    shown = ranks[:MOST_RANKS]
    longest_s = max(mean_of(measurements.of(rank, "step_s")) for rank in shown)
    rows = "".join(_step_row(measurements, rank, longest_s) for rank in shown)
    lines = [Line(label=rank.label, points=measurements.of(rank, "step_s")) for rank in shown]
    picture = chart("Step", "s", lines[:8], span) if len(lines) <= 8 else strips("Step", "s", lines, span)
    return (
        '<section id="steps"><h2>Steps</h2><p class="soft small">Mean of all steps, by rank; a rank that waits in '
        "communication waits for a slower one.</p>"
        '<div class="card"><div class="scroll"><table><tr><th>rank</th><th></th><th>step</th><th>median</th>'
        f"<th>p95</th><th>longest</th></tr>{rows}</table></div>{key_of(STEP_PARTS)}"
        f"{_more(len(ranks), MOST_RANKS, 'ranks')}"
        f'<div class="charts">{picture}</div></div>{_straggler(facts)}</section>'
    )


def usage(measurements: Measurements) -> str:
    """Return the section on the usage of each host while the program ran, as box plots."""
    cards = []
    for host in measurements.hosts[:MOST_HOSTS]:
        rows = []
        for name, unit, points in usages_of(measurements, host.name):
            box = box_of(points)
            if box is None:
                continue
            top = _FULL if unit == "%" else nice_top(box.greatest)
            numbers = "".join(
                f"<td>{number(value)}</td>" for value in (box.least, box.p5, box.p50, box.p95, box.greatest, box.mean)
            )
            rows.append(
                f"<tr><td>{text(name)}, {text(unit)}</td><td>{box_plot(box, top)}</td><td>{number(top)}</td>"
                f"{numbers}</tr>"
            )
        if rows:
            cards.append(
                f'<div class="card"><h3>{text(host.name)}</h3><div class="scroll"><table><tr><th>used</th>'
                "<th>from 0</th><th>to</th><th>least</th><th>p5</th><th>median</th><th>p95</th><th>greatest</th>"
                "<th>mean</th></tr>"
                f"{''.join(rows)}</table></div></div>"
            )
    if not cards:
        cards = ['<p class="soft">Nothing was measured while the program ran.</p>']
    return (
        '<section id="usage"><h2>Usage</h2><p class="soft small">While the program ran; processors are all of the '
        f"host's together.</p>{''.join(cards)}{_more(len(measurements.hosts), MOST_HOSTS, 'hosts')}</section>"
    )


def hosts(facts: ReportFacts, measurements: Measurements, span: Span) -> str:
    """Return charts over time for each host, and strips for its ranks.

    Args:
        facts: facts of the job.
        measurements: series of the job; at most MOST_HOSTS hosts are shown.
        span: time that the charts show.
    """
    shape_of = {host.name: host for host in facts.hosts}
    cards = [
        _host_card(shape_of.get(host.name), host.name, measurements, span) for host in measurements.hosts[:MOST_HOSTS]
    ]
    return (
        '<section id="hosts"><h2>Hosts over time</h2><p class="soft small">Lines are means, bands reach from the least '
        "to the greatest value; dashed lines are the program's beginning and end.</p>"
        f"{''.join(cards)}{_more(len(measurements.hosts), MOST_HOSTS, 'hosts')}</section>"
    )


def footer(facts: ReportFacts, measurements: Measurements) -> str:
    """Return the footer: time of writing, time that a point stands for, dropped rows and damaged blocks."""
    notes = [f"A point stands for {span_words(measurements.step_ms / MS_PER_S)}"]
    if facts.num_dropped:
        notes.append(f"{facts.num_dropped} rows were given up by hosts that could not send them")
    notes += [text(words) for words in facts.damaged]
    return (
        f"<footer>Written {_moment(facts.written_at)} by Clary {text(facts.version)}. {'; '.join(notes)}. "
        "This page needs no network.</footer>"
    )


def span_of(facts: ReportFacts, measurements: Measurements) -> Span:
    """Return the time that charts show: from the first measurement to the last."""
    moments = [point.at_ms for points in measurements.series.values() for point in (points[0], points[-1]) if points]
    start_ms = min(moments, default=int(facts.created_at.timestamp() * MS_PER_S))
    end_ms = max(start_ms + 1, max(moments, default=0))
    marks = [moment for run in measurements.runs_ms.values() for moment in run]  # start and end of each attempt
    if len(marks) > MOST_MARKS:
        marks = [marks[0], marks[-1]]
    return Span(start_ms=start_ms, end_ms=end_ms, marks_ms=marks)


def _straggler(facts: ReportFacts) -> str:
    if not facts.straggler:
        return ""
    chip = '<span class="chip issue">straggler</span>' if facts.has_straggler else '<span class="chip fine">even</span>'
    evidence = "".join(f"<li>{text(line)}</li>" for line in facts.straggler_evidence)
    return (
        f'<div class="card{" fires" if facts.has_straggler else ""}"><div class="head"><h3>Who the others wait for</h3>'
        f"{chip}</div><p>{text(facts.straggler)}</p>{f'<ul>{evidence}</ul>' if evidence else ''}</div>"
    )


def _time_parts(seconds: Mapping[str, float]) -> dict[str, float]:
    """Return the parts that TIME_PARTS names, in order of the ledger, then all other parts as one."""
    parts = {name: value for name, value in seconds.items() if name in TIME_PARTS}
    return parts | {"other": sum(value for name, value in seconds.items() if name not in TIME_PARTS)}


def _step_row(measurements: Measurements, rank: Scope, full_s: float) -> str:
    points = measurements.of(rank, "step_s")
    box = box_of(points)
    assert box is not None, "ranks without points are left out before"
    longest = measurements.of(rank, "step_max_s") or points
    longest_s = max(point.greatest for point in longest)
    parts = {}
    for name, series in _SERIES_OF_PART.items():
        own = measurements.of(rank, series)
        if own:
            parts[name] = max(0.0, mean_of(own))
    parts["other"] = max(0.0, box.mean - sum(parts.values()))
    return (
        f'<tr><td>{text(rank.label)}</td><td style="width:50%">{stacked_bar(parts, full_s, STEP_PARTS)}</td>'
        f"<td>{number(box.mean)} s</td><td>{number(box.p50)} s</td><td>{number(box.p95)} s</td>"
        f"<td>{number(longest_s)} s</td></tr>"
    )


def _host_card(shape: ReportHost | None, name: str, measurements: Measurements, span: Span) -> str:
    def line(label: str, series: str, factor: float = 1.0) -> Line:
        return Line(label=label, points=[_times(point, factor) for point in measurements.all_points(name, series)])

    num_cpus = max(0.01, shape.num_cpus if shape is not None else 1.0)
    gpus = [gpu.number for gpu in measurements.scopes("gpu", "utilisation_percent") if gpu.host == name]
    charts = [
        chart("Processors", "%", [line("", "host/cpu_percent", 1 / num_cpus)], span, most=_FULL),
        chart("Memory", "%", [line("", "host/memory_percent")], span, most=_FULL),
        chart(
            "Network",
            "MiB/s",
            [
                line("received", "host/network_received_bytes_s", 1 / MIB),
                line("sent", "host/network_sent_bytes_s", 1 / MIB),
            ],
            span,
        ),
        chart(
            "Disk",
            "MiB/s",
            [line("read", "host/disk_read_bytes_s", 1 / MIB), line("written", "host/disk_write_bytes_s", 1 / MIB)],
            span,
        ),
        chart(
            "GPU utilisation",
            "%",
            [line(f"gpu-{gpu}", f"gpu-{gpu}/utilisation_percent") for gpu in gpus],
            span,
            most=_FULL,
        ),
        chart("GPU memory", "%", [line(f"gpu-{gpu}", f"gpu-{gpu}/memory_percent") for gpu in gpus], span, most=_FULL),
    ]
    ranks = [rank for rank in measurements.scopes("rank", "cpu_percent") if rank.host == name]
    rank_lines = [line(f"rank-{rank.number}", f"rank-{rank.number}/cpu_percent") for rank in ranks[:MOST_RANKS]]
    what = ""
    if shape is not None:
        gpu_words = f", GPUs: {shape.num_gpus}" if shape.num_gpus else ""
        what = f"{shape.instance_type}, processors: {number(shape.num_cpus)}{gpu_words}, ranks: {shape.num_processes}"
    return (
        f'<div class="card"><div class="head"><h3>{text(name)}</h3><span class="soft small">{text(what)}</span></div>'
        f'<div class="charts">{"".join(charts) or "nothing was measured"}</div>'
        f"{strips('Processor time by rank', '%', rank_lines, span)}</div>"
    )


def _times(point: Point, factor: float) -> Point:
    return Point(
        point.at_ms,
        point.least * factor,
        point.greatest * factor,
        point.mean * factor,
        point.count,
        point.last * factor,
    )


def _more(num: int, most: int, what: str) -> str:
    return f'<p class="soft small">{num - most} more {what} are not shown.</p>' if num > most else ""


def _moment(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
