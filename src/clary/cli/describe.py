"""`clary describe JOB`: the job's events, how its time was spent, and the state of each host."""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from clary.cli.checkpoint_words import mirror_lines
from clary.cli.connection import connect
from clary.cli.ledger_words import ledger_lines
from clary.cli.pools import pool_line
from clary.cli.queue_words import awaited, queue_words, state_words
from clary.cli.stragglers import verdict_lines
from clary.cli.tables import clock_time, duration, json_text, screen_width, table, visible
from clary.cli.training_words import progress_text
from clary.control.analysis.failure_hints import category

INDENT = "  "


def add_parser(commands: Any) -> None:
    """Declare the command."""
    parser = commands.add_parser("describe", help="say all that is known of a job")
    parser.add_argument("job", metavar="JOB", help="name of a training job")
    parser.add_argument(
        "--why", action="store_true", help="say what failed first and what followed from it, or why the job waits"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the job as text or as JSON."""
    connection = connect()
    facts = connection.job_page(options.job)
    if options.why:
        facts["why"] = connection.job_page(options.job, "why")
    if options.json:
        print(json_text(facts))
    else:
        width = screen_width(sys.stdout)
        print(why(facts, width=width) if options.why else describe(facts, width=width))
    return 0


def why(facts: dict[str, Any], *, width: int | None = None) -> str:
    """Return the text that `clary describe --why` prints; tables fit into `width` columns if possible."""
    lines = [f"{facts['name']}  {state_words(facts)}"]
    cause = facts["cause"]
    if cause is None:
        lines += _without_failure(facts)
    else:
        where = cause["host"] or "the service"
        if cause["rank"] is not None:
            where += f", rank {cause['rank']}"
        advice = "can help: nothing of the job has to change" if cause["is_retryable"] else "will not help as it stands"
        lines += [
            f"  {'failure':<10}{_harmless(facts['failure_reason'])}",
            f"  {'where':<10}{where}",
            f"  {'verdict':<10}{category(cause['verdict'])}",
            f"  {'retry':<10}{advice}",
        ]
        lines += _last_words(facts.get("why") or {}, width=width)
    times = _dated_where_it_changes([_time(row["at"]) for row in facts["timeline"]])
    rows = [
        (f"  {moment}", row["kind"], row["where"] or "-", row["what"])
        for moment, row in zip(times, facts["timeline"], strict=True)
    ]
    return "\n".join([*lines, "", "what happened", table(("  TIME", "KIND", "WHERE", "WHAT"), rows, width=width)])


def _dated_where_it_changes(moments: Sequence[datetime]) -> list[str]:
    """Return local times to the millisecond, of one width; with the date where it is not that of the time before."""
    texts = []
    date = ""
    for moment in moments:
        before, (date, clock) = date, clock_time(moment).split()
        shown = date if date != before else " " * len(date)
        texts.append(f"{shown} {clock}.{moment.microsecond // 1000:03d}")
    return texts


def _without_failure(facts: Mapping[str, Any]) -> list[str]:
    """Return why a job waits, or why it was ended, for example by its limit."""
    if facts["state"] == "Queued":
        place = [f"  {'queue':<10}{queue_words(facts['queue'])}"] if facts.get("queue") else []
        return [*place, f"  {'waits for':<10}{_harmless(awaited(facts.get('pending_reason') or 'nothing yet'))}"]
    last = facts["transitions"][-1]["message"] if facts["state"] == "Stopped" and facts.get("transitions") else ""
    return [f"  {'failure':<10}none", *([f"  {'ended':<10}{_harmless(last)}"] if last else [])]


def _last_words(found: Mapping[str, Any], *, width: int | None) -> list[str]:
    """Return the hint, the end of the traceback, and the last lines of the process."""
    lines = []
    if found.get("hint"):
        told = textwrap.wrap(visible(found["hint"]), max(40, (width or 120) - 12), break_on_hyphens=False)
        lines += [f"  {'hint':<10}{told[0]}", *[f"  {'':<10}{line}" for line in told[1:]]]
    if found.get("traceback"):
        lines += ["", "where in the program", *[f"  {visible(line)}" for line in found["traceback"]]]
    if found.get("last_lines"):
        lines += ["", f"last lines of {found['lines_of']}", *[f"  {visible(line)}" for line in found["last_lines"]]]
    return lines


def describe(facts: dict[str, Any], *, width: int | None = None) -> str:
    """Return the text that `clary describe` prints; tables fit into `width` columns if possible."""
    lines = [f"{facts['name']}  {state_words(facts)}"]
    if facts.get("queue"):
        lines.append(f"  {'queue':<10}{queue_words(facts['queue'])}")
    lines += [f"  {label:<10}{_harmless(facts[key])}" for label, key in LABELS if facts.get(key)]
    if facts.get("times"):
        lines.append(f"  {'time':<10}{_times_text(facts['times'])}")
    if facts.get("progress"):
        lines.append(f"  {'progress':<10}{progress_text(facts['progress'])}")
    if facts.get("metrics"):
        pairs = ", ".join(f"{visible(item['name'])}={_number(item['value'])}" for item in facts["metrics"])
        lines.append(f"  {'metrics':<10}{pairs}")
    lines += ["", "phases"]
    rows = [
        (f"  {row['status']}", clock_time(_time(row["started_at"])), _took(row), row["message"])
        for row in facts["transitions"]
    ]
    lines.append(table(("  PHASE", "BEGAN", "TOOK", "MESSAGE"), rows, width=width))
    if facts.get("past_attempts"):
        lines += ["", "attempts that ended early"]
        attempt_rows = [
            (f"  {row['number']}", row["kind"], clock_time(_time(row["asked_at"])), row["reason"])
            for row in facts["past_attempts"]
        ]
        lines.append(table(("  ATTEMPT", "HOW", "WHEN", "WHY"), attempt_rows, width=width))
    if facts["hosts"]:
        lines += ["", "hosts"]
        host_rows = [
            (
                f"  {host['name']}",
                host["phase"],
                host["instance_type"],
                str(host["processes_per_host"]),
                ", ".join(f"{part} {seconds:.2f}s" for part, seconds in host["timings_s"].items()) or "-",
                host["exits"] or "-",
            )
            for host in facts["hosts"]
        ]
        lines.append(table(("  HOST", "PHASE", "TYPE", "PROCESSES", "TOOK", "EXITS"), host_rows, width=width))
        if facts.get("clocks"):
            lines += ["", "clocks", *[f"  {_harmless(words)}" for words in facts["clocks"]]]
    if facts.get("warm_pool"):
        lines += ["", "warm pool", f"  {pool_line(facts['warm_pool'])}"]
    if facts.get("checkpoints"):
        lines += [
            "",
            "checkpoints",
            *[f"  {line}" for line in mirror_lines(facts["checkpoints"], now=datetime.now(UTC))],
        ]
    if facts.get("rules"):
        rule_rows = [(f"  {row['name']}", row["kind"], row["status"], row["details"] or "-") for row in facts["rules"]]
        lines += ["", "rules", table(("  RULE", "LOOKS AT", "STATUS", "WHAT IT SAYS"), rule_rows, width=width)]
    if facts.get("ledger") and facts["ledger"]["num_attempts"]:  # before the first attempt a job has no hosts
        ledger = ledger_lines(facts["ledger"], width=None if width is None else width - len(INDENT))
        lines += ["", "time and money", *[f"{INDENT}{line}".rstrip() for line in ledger]]
    alarms = [
        f"  - {host['name']}: {_harmless(host['standstill'])}" for host in facts["hosts"] if host.get("standstill")
    ]
    if alarms:
        lines += ["", "alarms", *alarms]
    if (facts.get("stragglers") or {}).get("is_found"):
        lines += ["", "stragglers", *[f"  {line}" for line in verdict_lines(facts["stragglers"])]]
    for label, key in NOTES:
        if facts.get(key):
            lines += ["", label, *[f"  - {_harmless(text)}" for text in facts[key]]]
    return "\n".join(lines)


NOTES = (("warnings", "warnings"), ("emulation", "emulation"), ("not isolated", "not_isolated"))
LABELS = (
    ("waits for", "pending_reason"),
    ("failure", "failure_reason"),
    ("image", "image"),
    ("runs in", "environment"),
    ("model", "model_artifacts_uri"),
    ("trial of", "tuning_job"),
    ("arn", "arn"),
)


def _times_text(times: Mapping[str, Any]) -> str:
    """Return `queued 26m 00s, starting 0.4 s, running 3.1 s; work took 3.5 s`."""
    parts = [(word, times[f"{word}_s"]) for word in ("queued", "starting", "running", "stopping")]
    told = ", ".join(f"{word} {duration(seconds)}" for word, seconds in parts if seconds > 0)
    took = "" if times["took_s"] is None else f"; work took {duration(times['took_s'])} from start to end"
    if times["took_s"] is not None and times["ended_at"] is None:
        took = f"; at work for {duration(times['took_s'])}"
    return f"{told or 'none'}{took}"


def _harmless(text: str) -> str:
    """Return the lines of a program's text, with control characters spelled out."""
    return "\n".join(visible(line) for line in text.split("\n"))


def _number(value: float | None) -> str:
    return "nan" if value is None else f"{value:g}"  # the service sends null for NaN and infinity


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)


def _took(row: dict[str, Any]) -> str:
    if row["ended_at"] is None:
        return "..."
    return duration((_time(row["ended_at"]) - _time(row["started_at"])).total_seconds())
