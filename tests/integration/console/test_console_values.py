"""Numbers, dates and times in the console: short durations, logs of several days, a computer whose clock is wrong."""

import re
import time
from urllib.parse import parse_qsl, urlsplit

import pytest
from boto3_clients import Clients, job_request, unique, wait
from console_browser import PHONE, open_job, width_of
from playwright.sync_api import expect
from running_service import start_service

from clary.cli.metric_words import shown

pytest_plugins = ["console_fixtures"]
pytestmark = [pytest.mark.clients, pytest.mark.timeout(300), pytest.mark.xdist_group("console-values")]

LIVES = 'i=0; while :; do i=$((i+1)); echo "step $i loss=0.5"; sleep 0.2; done'
HOUR_MS = 3_600_000
WRONG_CLOCK = "{ const now = Date.now.bind(Date); Date.now = () => now() + (%d); }"
WORDS = "([name, ...values]) => import('/console/base/words.js').then((words) => words[name](...values))"
NEW_YEAR = 1_735_689_600_000  # 2025-01-01 00:00 UTC


@pytest.fixture(scope="module")
def own_service(tmp_path_factory):
    """A service of this module; its folder's name has characters with a meaning in URLs."""
    own = start_service(tmp_path_factory.mktemp("console") / "state%20of?a#service")
    yield own
    own.clary("down")


@pytest.fixture(scope="module")
def job(own_service):
    """A running job."""
    aws = Clients(own_service)
    name = unique("lives")
    aws.sagemaker.create_training_job(**job_request(name, LIVES))
    wait(aws, name, until=("Training",))
    return name


@pytest.fixture
def page(console):
    context = console.context(timezone_id="UTC", permissions=["clipboard-read", "clipboard-write"])
    yield context.new_page()
    context.close()


def words(page, name, *values):
    return page.evaluate(WORDS, [name, *values])


def test_seconds_are_shown_as_by_the_command(page, console):
    page.goto(f"{console.url}/console/elsewhere")
    page.wait_for_selector("main")
    for number in (0, 0.0003, 0.0042, 0.042, 0.5, 0.9999, 1, 1.5, 12.34, -0.0042):
        assert words(page, "quantity", number, "s") == shown(number, "s")


def test_no_small_number_is_rounded_to_nothing(page, console):
    page.goto(f"{console.url}/console/elsewhere")
    page.wait_for_selector("main")
    for name, values, text in (
        ("quantity", (0.000004, "s"), "0.0040 ms"),
        ("quantity", (0.0042, "%"), "0.0042 %"),
        ("quantity", (0.04, "%"), "0.04 %"),
        ("duration", (0.0042,), "4.2 ms"),
        ("duration", (0.04,), "40 ms"),
        ("duration", (0.05,), "0.1 s"),
        ("duration", (4.2,), "4.2 s"),
    ):
        assert words(page, name, *values) == text


def test_a_date_has_its_year_unless_it_is_this_year_s(page, console):
    page.goto(f"{console.url}/console/elsewhere")
    page.wait_for_selector("main")
    assert words(page, "moment", NEW_YEAR - 1000) == "31 Dec 2024, 23:59:59"
    now_ms = int(time.time() * 1000)
    assert re.fullmatch(r"\d\d:\d\d:\d\d", words(page, "moment", now_ms))
    assert words(page, "stamp", NEW_YEAR - 877) == "2024-12-31 23:59:59.123"


def test_a_chart_of_short_steps_says_how_long_they_are(page, console, job):
    def answer(route):
        response = route.fetch()
        facts = response.json()
        begin = facts["until_ms"] - 60_000
        points = [[begin + 1000 * at, 0.004, 0.005, 0.0042 + at * 1e-5, 9, 0.0042] for at in range(60)]
        route.fulfill(json={**facts, "series": [{"host": "algo-1", "name": "rank-0/step_s", "points": points}]})

    page.route("**/series?**", answer)
    open_job(page, console, job, "charts")
    chart = page.get_by_role("group", name="Rank step", exact=True)
    expect(chart.get_by_role("button", name=re.compile("^rank 0"))).to_contain_text("4.8 ms")
    ticks = chart.locator("svg text[text-anchor=end]").all_text_contents()
    assert len(set(ticks)) == len(ticks) > 2
    assert all(tick == "0 s" or tick.endswith(" ms") for tick in ticks), ticks
    page.unroute_all(behavior="ignoreErrors")


def test_a_log_of_several_days_shows_and_copies_dates(page, console, job):
    times = [NEW_YEAR - 90_000_000, NEW_YEAR - 1, NEW_YEAR, NEW_YEAR + 1]
    lines = [
        {"at_ms": at, "host": "algo-1", "rank": None, "text": f"line {index}", "cursor": f"{at}.algo-1.{index}"}
        for index, at in enumerate(times)
    ]
    fields = {"next": None, "searched_until": None, "is_over": True, "hosts": ["algo-1"], "num_lines": 4}

    def answer(route):
        is_first = "after=" not in route.request.url
        shown = lines[3:0:-1] if is_first else []
        route.fulfill(json={**fields, "lines": shown, "previous": lines[3]["cursor"]})

    page.route("**/log-lines?**", answer)
    open_job(page, console, job, "logs")
    log = page.get_by_role("log")
    expect(log.locator(".log-line")).to_have_count(3)
    assert log.locator(".log-day").all_text_contents() == ["31 Dec 2024", "1 Jan 2025"]
    assert log.locator(".log-block > *").all_text_contents() == [
        "31 Dec 2024",
        "23:59:59.999line 1",
        "1 Jan 2025",
        "00:00:00.000line 2",
        "00:00:00.001line 3",
    ]
    expect(log.locator("time").first).to_have_attribute("title", "31 Dec 2024, 23:59:59")
    page.get_by_role("button", name="Copy", exact=True).click()
    expect(page.get_by_text("Copied", exact=True)).to_be_visible()
    copied = page.evaluate("navigator.clipboard.readText()").splitlines()
    assert copied[0] == "2024-12-31 23:59:59.999 algo-1  line 1"
    assert copied[1] == "2025-01-01 00:00:00.000 algo-1  line 2"
    page.unroute_all(behavior="ignoreErrors")


def test_lines_that_come_later_get_a_date_only_on_a_new_day(page, console, job):
    day_ms = 24 * HOUR_MS
    asked = []

    def answer(route):
        query = dict(parse_qsl(urlsplit(route.request.url).query))
        at = NEW_YEAR + len(asked) // 2 * day_ms + len(asked)
        asked.append(query.get("after"))
        line = {"at_ms": at, "host": "algo-1", "rank": None, "text": f"at {at}", "cursor": f"{at}.algo-1.0"}
        fields = {"next": None, "searched_until": None, "is_over": len(asked) >= 4, "hosts": ["algo-1"], "num_lines": 4}
        route.fulfill(json={**fields, "lines": [line] if len(asked) <= 4 else [], "previous": line["cursor"]})

    page.route("**/log-lines?**", answer)
    open_job(page, console, job, "logs")
    log = page.get_by_role("log")
    expect(log.locator(".log-line")).to_have_count(4)
    assert log.locator(".log-day").all_text_contents() == ["1 Jan 2025", "2 Jan 2025"]
    page.unroute_all(behavior="ignoreErrors")


def test_events_of_several_days_show_dates(page, console, job):
    rows = [
        {"at": f"{at}+00:00", "kind": "status", "where": "", "what": at}
        for at in ("2024-12-31T23:59:59.999", "2025-01-01T00:00:00", "2025-01-01T00:00:01")
    ]
    page.route(f"**/clary/v1/jobs/{job}", lambda route: route.fulfill(json={**route.fetch().json(), "timeline": rows}))
    open_job(page, console, job)
    times = page.locator(".event time")
    expect(times).to_have_text(["31 Dec 202423:59:59.999", "1 Jan 202500:00:00.000", "00:00:01.000"])
    page.unroute_all(behavior="ignoreErrors")


def test_an_answer_that_breaks_off_is_a_lost_connection(page, console, job):
    page.goto(f"{console.url}/console/jobs")
    expect(page.get_by_role("link", name=job)).to_be_visible()
    page.route("**/clary/v1/**", lambda route: route.abort())
    notice = page.get_by_text("The connection to the service is lost")
    expect(notice).to_be_visible()
    page.unroute("**/clary/v1/**")
    page.route(
        "**/clary/v1/jobs?**",
        lambda route: route.fulfill(status=200, content_type="application/json", body='{"jobs": [{"na'),
    )
    with page.expect_response("**/clary/v1/jobs?**"):
        page.get_by_role("button", name="Try now").click()
    page.evaluate("new Promise((done) => setTimeout(done, 100))")
    expect(notice).to_be_visible()
    expect(page.get_by_role("link", name=job)).to_be_visible()
    asked = """import("/console/base/api.js").then(({ get, ConnectionLost }) =>
        get("jobs", { limit: 1 }).then(() => "an answer", (error) => error instanceof ConnectionLost))"""
    assert page.evaluate(asked) is True
    page.unroute("**/clary/v1/jobs?**")
    page.get_by_role("button", name="Try now").click()
    expect(notice).to_be_hidden()


@pytest.mark.parametrize("wrong_ms", [-2 * HOUR_MS, 2 * HOUR_MS])
def test_times_are_the_service_s_on_a_computer_whose_clock_is_wrong(page, console, job, wrong_ms):
    page.add_init_script(WRONG_CLOCK % wrong_ms)
    page.goto(f"{console.url}/console/jobs")
    row = page.get_by_role("row").filter(has=page.get_by_role("link", name=job, exact=True))
    expect(row.locator(".cell-took")).to_have_text(re.compile(r"^([1-9]\d*(\.\d)? s|\d+ min( \d+ s)?)$"))
    expect(row.locator(".cell-started")).to_have_text(re.compile(r"^(just now|\d+ (s|min) ago)$"))
    with page.expect_response("**/series?**") as answered:
        open_job(page, console, job, "charts")
    asked = dict(parse_qsl(urlsplit(answered.value.url).query))
    assert int(asked["until_ms"]) == pytest.approx(time.time() * 1000, abs=20_000)
    assert int(asked["since_ms"]) < int(asked["until_ms"])
    expect(page.get_by_role("group", name="CPU", exact=True).get_by_role("img")).to_be_visible()


def test_charts_begin_when_a_queued_job_got_its_hosts(page, console, job):
    hours = [f"2025-01-01T0{hour}:00:00+00:00" for hour in range(4)]
    lanes = {
        "algo-1": [{"part": "queued", "start": hours[0], "end": hours[2]}, {"part": "starting", "start": hours[2]}]
    }
    row = {"status": "Starting", "started_at": hours[0], "ended_at": hours[3], "message": ""}
    changed = {"lanes": lanes, "transitions": [row]}
    page.route(f"**/clary/v1/jobs/{job}", lambda route: route.fulfill(json={**route.fetch().json(), **changed}))
    with page.expect_response("**/series?**") as answered:
        open_job(page, console, job, "charts")
    assert int(dict(parse_qsl(urlsplit(answered.value.url).query))["since_ms"]) == NEW_YEAR + 2 * HOUR_MS
    page.unroute_all(behavior="ignoreErrors")


def test_what_took_a_host_its_time_can_be_read_on_a_phone(page, console, job):
    page.set_viewport_size(PHONE)
    open_job(page, console, job)
    hosts = page.get_by_role("table").filter(has=page.get_by_role("columnheader", name="Exits"))
    took = hosts.get_by_role("row").nth(1).get_by_role("cell").nth(4)
    expect(took).to_contain_text("tree")
    assert took.bounding_box()["width"] >= PHONE["width"] / 3
    assert width_of(page) <= PHONE["width"]
