"""The console in Chromium: how long pages take to load and to answer a hand, with many jobs and a long log.

Where: `bench_console` asks after it has measured the service's answers. Times run from the act to the moment at which
what was asked for is in the page and could be painted; the page itself looks for it at every frame, since playwright
looks rarely (after 270 ms, and not again before 770). What is typed is asked for after a rest (140 ms in the list
of jobs, 220 ms in the log), which the times have in them.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from benchmarks.control.console_state import LONG_JOB, NEEDLE
from benchmarks.lines import Line, median_and_spread
from benchmarks.service import BenchmarkService

CHROMIUM = Path("/usr/bin/chromium")
ARGUMENTS = ("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking")
VIEWPORT = {"width": 1280, "height": 820}
PATIENCE_MS = 60_000
MS_PER_S = 1000.0
GOAL_LOAD_MS = 1000.0
GOAL_ACT_MS = 400.0  # of what a hand does; from about there on people feel that they wait
GOAL_FAR_MS = 3000.0  # to the other end of everything
PAINTED = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
# That an element which a selector finds has these words and is laid out.
SEEN = """([selector, words, patienceMs]) => new Promise((done, fail) => {
  const began = performance.now();
  const isThere = (one) => one.getClientRects().length > 0 && one.textContent.includes(words);
  const look = () => {
    if ([...document.querySelectorAll(selector)].some(isThere)) done();
    else if (performance.now() - began > patienceMs) fail(new Error(`no ${selector} with "${words}"`));
    else requestAnimationFrame(look);
  };
  look();
})"""

Act = Callable[[Page], None]


def browser_lines(service: BenchmarkService, size: str, *, repeats: int) -> Iterator[Line]:
    """Measure every page and act; nothing where there is no Chromium."""
    if not CHROMIUM.exists():
        return
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=list(ARGUMENTS))
        context = browser.new_context(viewport=VIEWPORT)  # type: ignore[arg-type] # a dict with both members
        context.set_default_timeout(PATIENCE_MS)
        url = service.environment["AWS_ENDPOINT_URL"]
        token = json.loads((service.home / "secrets" / "root.json").read_text())["admin_token"]
        content_type = {"Content-Type": "application/json"}
        answer = context.request.post(
            f"{url}/clary/v1/session", data=json.dumps({"token": token}), headers=content_type
        )
        if not answer.ok:
            raise SystemExit(f"the console did not let the browser in: {answer.status} {answer.text()[:200]}")
        page = context.new_page()
        try:
            for name, goal_ms, prepare, act in _acts(url):
                yield _measured(f"browser,{name},{size}", page, prepare, act, goal_ms=goal_ms, repeats=repeats)
        finally:
            browser.close()


def _acts(url: str) -> Iterator[tuple[str, float, Act, Act]]:
    """Yield the acts to measure, each as its name, its goal, the preparation, and the act itself."""

    def nothing(page: Page) -> None:
        page.goto("about:blank")

    def jobs(page: Page) -> None:
        page.goto(f"{url}/console/jobs")
        _see(page, "[role=table]:not([aria-busy]) .rows a")

    def search(page: Page) -> None:
        page.get_by_label("Search jobs").fill("llama")
        _see(page, ".rows .row:first-child a", "llama")

    def status(page: Page) -> None:
        page.locator(".chip", has_text="Failed").click()
        _see(page, ".rows .row:first-child .badge", "Failed")

    def last(page: Page) -> None:
        page.evaluate("scrollTo(0, document.documentElement.scrollHeight)")
        _see(page, ".rows a", "resnet-sweep-00000")

    def open_job(page: Page) -> None:
        page.locator(".rows a").first.click()
        _see(page, "section h2", "Time and money")

    def job(page: Page) -> None:
        page.goto(f"{url}/console/jobs/{LONG_JOB}")
        _see(page, "section h2", "Time and money")

    def log(page: Page) -> None:
        page.get_by_role("tab", name="Logs").click()
        _see(page, ".log-line")

    def job_and_log(page: Page) -> None:
        job(page)
        log(page)

    def log_search(page: Page) -> None:
        page.get_by_label("Search the log").fill(NEEDLE.lower())
        _see(page, ".log-line mark")

    def log_start(page: Page) -> None:
        page.get_by_role("button", name="Start", exact=True).click()
        _see(page, ".log-edge", "The log begins here")

    def charts(page: Page) -> None:
        page.get_by_role("tab", name="Charts").click()
        _see(page, '[aria-label="loss: chart of 1 line"]')

    yield "load-jobs", GOAL_LOAD_MS, nothing, jobs
    yield "search-jobs", GOAL_ACT_MS, jobs, search
    yield "filter-jobs", GOAL_ACT_MS, jobs, status
    yield "open-job", GOAL_ACT_MS, jobs, open_job
    yield "end-of-jobs", GOAL_FAR_MS, jobs, last
    yield "load-job", GOAL_LOAD_MS, nothing, job
    yield "log", GOAL_ACT_MS, job, log
    yield "search-log", GOAL_FAR_MS, job_and_log, log_search
    yield "start-of-log", GOAL_ACT_MS, job_and_log, log_start
    yield "charts", GOAL_ACT_MS, job, charts


def _see(page: Page, selector: str, words: str = "") -> None:
    """Wait until an element that an act brings into the page can be seen, with `words` in it."""
    page.evaluate(SEEN, [selector, words, PATIENCE_MS])


def _measured(case: str, page: Page, prepare: Act, act: Act, *, goal_ms: float, repeats: int) -> Line:
    samples = []
    for _ in range(repeats + 1):  # the first one reads what is cached from then on
        prepare(page)
        page.evaluate(PAINTED)
        began_s = time.perf_counter()
        act(page)
        page.evaluate(PAINTED)
        samples.append((time.perf_counter() - began_s) * MS_PER_S)
    middle, spread = median_and_spread(samples[1:])
    return Line(
        case=case,
        metric="milliseconds",
        unit="ms",
        better="lower",
        ours=middle,
        goal=f"<= {goal_ms:g}",
        met=middle <= goal_ms,
        samples=repeats,
        spread=spread,
        verified=True,  # an act that does not come to its end raises
        details={"first_ms": samples[0], "slowest_ms": max(samples[1:]), "load_average": os.getloadavg()[0]},
    )
