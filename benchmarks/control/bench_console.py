"""The console: the service's time for the requests of its pages, with 10,000 jobs and a million log lines.

Each page is asked for one after the other over one connection, by cookie, as a browser does, and the time of the
middle one counts; `slowest` stands in the details. A search that finds nothing goes through the whole log: the time
until its first answer counts, and a search to the end of the log, answer after answer, is a line of its own.

--quick has a tenth of both.
"""

from __future__ import annotations

import http.client
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from urllib.parse import urlencode, urlsplit

from benchmarks.control.console_pages import browser_lines
from benchmarks.control.console_state import LONG_JOB, NEEDLE, fill
from benchmarks.lines import Line, median_and_spread
from benchmarks.service import BenchmarkService, running_service

NUM_JOBS, NUM_LINES = 10_000, 1_000_000
QUICK_DIVISOR = 10
REPEATS, QUICK_REPEATS = 50, 15
GOAL_MS = 50.0  # of the list of jobs
GOAL_SEARCH_MS = 1000.0  # of a search that goes through all lines, until its first answer
MS_PER_S = 1000.0

Check = Callable[[Any], bool]


class Visitor:
    """A signed-in user of the console, on one connection."""

    def __init__(self, service: BenchmarkService) -> None:
        token = json.loads((service.home / "secrets" / "root.json").read_text())["admin_token"]
        address = urlsplit(service.environment["AWS_ENDPOINT_URL"])
        self._connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=60)
        self._cookie = ""
        _, headers = self._ask("POST", "/clary/v1/session", json.dumps({"token": token}))
        self._cookie = str(headers["Set-Cookie"]).partition(";")[0]

    def get(self, path: str, **query: str | int) -> Any:
        """Return a page below /clary/v1, parsed."""
        return json.loads(self._ask("GET", f"/clary/v1/{path}?{urlencode(query)}")[0])

    def file(self, path: str) -> bytes:
        """Return a file of the console."""
        return self._ask("GET", path)[0]

    def close(self) -> None:
        """Hang up."""
        self._connection.close()

    def _ask(self, method: str, path: str, body: str | None = None) -> tuple[bytes, http.client.HTTPMessage]:
        headers = {"Accept": "text/html,application/json", **({"Cookie": self._cookie} if self._cookie else {})}
        self._connection.request(method, path, body, headers)
        answer = self._connection.getresponse()
        data = answer.read()
        if answer.status != http.client.OK:
            raise SystemExit(f"{method} {path[:200]} was answered with {answer.status}: {data[:200]!r}")
        return data, answer.headers


def run(quick: bool) -> Iterator[Line]:
    """Measure every page."""
    divisor = QUICK_DIVISOR if quick else 1
    num_jobs, num_lines = NUM_JOBS // divisor, NUM_LINES // divisor
    print(f"console: writing {num_jobs} jobs and {num_lines} lines", file=sys.stderr)
    with running_service(prepare=partial(fill, num_jobs=num_jobs, num_lines=num_lines)) as service:
        visitor = Visitor(service)
        try:
            yield from _pages(visitor, num_jobs, num_lines, repeats=QUICK_REPEATS if quick else REPEATS)
            yield from browser_lines(service, f"jobs={num_jobs},lines={num_lines}", repeats=3 if quick else 15)
        finally:
            visitor.close()


def _pages(visitor: Visitor, num_jobs: int, num_lines: int, *, repeats: int) -> Iterator[Line]:
    size = f"jobs={num_jobs},lines={num_lines}"
    jobs, job = partial(visitor.get, "jobs", limit=100), f"jobs/{LONG_JOB}"
    pages: tuple[tuple[str, Callable[[], Any], Check], ...] = (
        ("index", partial(visitor.file, "/"), lambda page: b"<html" in page),
        ("jobs", jobs, lambda page: len(page["jobs"]) == 100 and page["total"] == num_jobs),
        ("jobs,search", partial(jobs, search="llama"), lambda page: 0 < page["total"] < num_jobs / 5),
        ("jobs,search-reason", partial(jobs, search="cuda error 7"), lambda page: page["counts"]["Failed"] > 0),
        ("jobs,by-duration", partial(jobs, sort="duration", status="Failed"), lambda page: len(page["jobs"]) == 100),
        ("jobs,500", partial(visitor.get, "jobs", limit=500), lambda page: len(page["jobs"]) == 500),
        ("job", partial(visitor.get, job), lambda page: page["name"] == LONG_JOB),
        ("request", partial(visitor.get, f"{job}/request"), lambda page: "(hidden)" in json.dumps(page)),
        ("hosts", partial(visitor.get, "hosts"), lambda page: page["hosts"] == []),
        (
            "compare",
            partial(visitor.get, "compare", jobs="resnet-sweep-00000,llama-sweep-00001"),
            lambda page: len(page["jobs"]) == 2,
        ),
        ("log", partial(visitor.get, f"{job}/log-lines"), lambda page: len(page["lines"]) == 200),
        (
            "log,search-common",
            partial(visitor.get, f"{job}/log-lines", search="STEP 0"),
            lambda page: len(page["lines"]) == 200,
        ),
        (
            "metrics",
            partial(visitor.get, f"{job}/metric-values", points=1000),
            lambda page: 500 <= len(page["metrics"]["loss"]) <= 1000,
        ),
    )
    for name, ask, check in pages:
        goal_ms = GOAL_MS if name.startswith("jobs") else None
        yield _measured(f"page,{name},{size}", ask, check, repeats=repeats, goal_ms=goal_ms)
    search = partial(visitor.get, f"{job}/log-lines", search="nobody has said this")
    first_repeats = max(3, repeats // 5)
    yield _measured(
        f"search,nothing,{size}", search, lambda page: not page["lines"], repeats=first_repeats, goal_ms=GOAL_SEARCH_MS
    )
    yield _whole_search(visitor, size, num_lines)


def _measured(case: str, ask: Callable[[], Any], check: Check, *, repeats: int, goal_ms: float | None) -> Line:
    is_right = check(ask())  # the first one reads what is cached from then on
    samples = []
    for _ in range(repeats):
        began_s = time.perf_counter()
        is_right = check(ask()) and is_right
        samples.append((time.perf_counter() - began_s) * MS_PER_S)
    middle, spread = median_and_spread(samples)
    return Line(
        case=case,
        metric="milliseconds",
        unit="ms",
        better="lower",
        ours=middle,
        goal="" if goal_ms is None else f"<= {goal_ms:g}",
        met=None if goal_ms is None else middle <= goal_ms,
        samples=repeats,
        spread=spread,
        verified=is_right,
        details={"slowest_ms": max(samples), "load_average": os.getloadavg()[0]},
    )


def _whole_search(visitor: Visitor, size: str, num_lines: int) -> Line:
    """Look for one line near the begin of the log, from its end, page after page."""
    began_s = time.perf_counter()
    found: list[str] = []
    num_answers = 0
    place: dict[str, str] = {}
    while True:
        page = visitor.get(f"jobs/{LONG_JOB}/log-lines", search=NEEDLE.lower(), **place)
        num_answers += 1
        found += [line["text"] for line in page["lines"]]
        if page["next"] is None:
            break
        place = {"before": page["next"]}
    seconds = time.perf_counter() - began_s
    return Line(
        case=f"search,whole,{size}",
        metric="lines_per_s",
        unit="1/s",
        better="higher",
        ours=num_lines / seconds,
        verified=set(found) == {NEEDLE},
        details={"num_answers": num_answers, "seconds": seconds, "load_average": os.getloadavg()[0]},
    )
