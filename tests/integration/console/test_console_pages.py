"""The console in a real browser, over a real service with real jobs; elements are located by role and text."""

import re
from urllib.parse import parse_qsl, urlsplit

import pytest
from boto3_clients import Clients, job_request, unique, wait
from console_browser import PHONE, keep_screenshot, open_job, width_of
from playwright.sync_api import expect
from running_service import start_service

pytest_plugins = ["console_fixtures"]
pytestmark = [pytest.mark.clients, pytest.mark.timeout(300), pytest.mark.xdist_group("console-pages")]

LEARNS = 'for i in $(seq 10 30); do echo "step $i/30 loss=0.$((90 - i)) accuracy=0.$i"; sleep 0.1; done'
LIVES = 'i=0; while :; do i=$((i+1)); echo "step $i loss=0.5 tick-$((i % 10))-tock"; sleep 0.2; done'
AGENT_SAYS = ("prepared in ", "the program ended with exit code 0", "results uploaded in ")  # in the job's log
BREAKS = "python3 -c 'raise FileNotFoundError(\"vocab.json is not there\")'"
ATTACK = "<img src=x onerror=alert(1)><script>alert(2)</script>"
ATTACKS = f"for i in 1 2 3 4 5; do echo '{ATTACK} loss=0.25'; sleep 0.3; done; echo '{ATTACK}' >&2; exit 3"
METRICS = [{"Name": "loss", "Regex": "loss=([0-9.]+)"}, {"Name": "accuracy", "Regex": "accuracy=([0-9.]+)"}]
TWO_HOSTS = {"InstanceCount": 2, "InstanceType": "ml.m5.large", "VolumeSizeInGB": 10}
# For the row of a job: its offset below the first row, its height, and the list's number of jobs.
PLACE_OF = """name => {
  const row = [...document.querySelectorAll(".rows .row")].find((one) => one.textContent.includes(name));
  const top = row.getBoundingClientRect().top - row.parentElement.getBoundingClientRect().top;
  return [top, row.offsetHeight, document.querySelector("[role=status].hidden-text").textContent];
}"""


class Jobs:
    """The jobs of the pages under test, by their behaviour."""

    def __init__(self, service):
        self.aws = Clients(service)
        self.slow = self._start("learns-slow", LEARNS, HyperParameters={"learning_rate": "0.1"})
        self.fast = self._start("learns-fast", LEARNS, HyperParameters={"learning_rate": "0.4"})
        self.broken = self._start("breaks", BREAKS)
        self.hostile = self._start(
            "hostile", ATTACKS, HyperParameters={ATTACK: ATTACK}, Environment={"API_TOKEN": "s3cr3t"}
        )
        self.live = self._start("lives", LIVES, ResourceConfig=TWO_HOSTS)
        for name in (self.slow, self.fast, self.broken, self.hostile):
            wait(self.aws, name)
        wait(self.aws, self.live, until=("Training",))

    def _start(self, label, command, **members):
        request = job_request(unique(label), command, **members)
        request["AlgorithmSpecification"]["MetricDefinitions"] = METRICS
        self.aws.sagemaker.create_training_job(**request)
        return request["TrainingJobName"]

    def start_waiting(self):
        """Start a job that needs all hosts of the service, two of which another job occupies."""
        name = self._start("waits", LIVES, ResourceConfig={**TWO_HOSTS, "InstanceCount": 8})
        wait(self.aws, name, until=("Pending",))
        return name

    def start_live(self):
        name = self._start("stops", LIVES)
        wait(self.aws, name, until=("Training",))
        return name


@pytest.fixture(scope="module")
def own_service(tmp_path_factory):
    """A service of this module."""
    own = start_service(tmp_path_factory.mktemp("console"))
    yield own
    own.clary("down")


@pytest.fixture(scope="module")
def jobs(own_service):
    return Jobs(own_service)


class ManyJobs:
    """A list of thousands of jobs, each named after its number of older jobs, so that a position implies the name.

    If the list `grows`, each request for the first page adds one job.
    """

    def __init__(self, page, total, *, grows=False):
        self.asked = []  # positions from which later pages were requested
        self._total = total
        self._grows = grows
        self._answer = None  # response of the service
        page.route("**/clary/v1/jobs?**", self._fulfil)

    def _fulfil(self, route):
        query = dict(parse_qsl(urlsplit(route.request.url).query))
        if "after" not in query:
            self._answer = self._answer or route.fetch().json()
            self._total += self._grows
        first = int(query.get("after", self._total)) - int(query.get("skip", 0))
        last = max(0, first - int(query["limit"]))
        if "after" in query:
            self.asked.append(self._total - first)
        model = self._answer["jobs"][0] | {"status": "Completed", "secondary_status": "Completed"}
        jobs = [{**model, "name": f"job-{number}"} for number in range(first - 1, last - 1, -1)]
        route.fulfill(json={**self._answer, "jobs": jobs, "total": self._total, "next": str(last) if last else None})


def open_jobs(page, console):
    page.goto(f"{console.url}/console/jobs")
    expect(page.get_by_role("table", name="Jobs")).not_to_have_attribute("aria-busy", "true")


def row_of(page, name):
    return page.get_by_role("row").filter(has=page.get_by_role("link", name=name, exact=True))


@pytest.mark.long
def test_a_token_signs_in_a_wrong_one_is_refused_and_signing_out_ends_it(console, jobs):
    context = console.context(is_signed_in=False)
    page = context.new_page()
    page.goto(f"{console.url}/console/jobs/{jobs.slow}")
    page.get_by_label("Token").fill("not the token")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_contain_text("does not open this service")
    keep_screenshot(page, "sign-in-desktop-light")
    page.get_by_label("Token").fill(console.token)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("heading", name=jobs.slow, level=1)).to_be_visible()  # the deep link is kept
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("heading", name="Sign in to Clary")).to_be_visible()
    page.reload()
    expect(page.get_by_role("heading", name="Sign in to Clary")).to_be_visible()
    context.close()


def test_the_link_of_the_command_signs_in_once_and_its_code_leaves_the_address(console, own_service, jobs):
    said = own_service.clary("console").stdout
    link = re.search(r"http\S+#code=\S+", said)[0]
    context = console.context(is_signed_in=False)
    page = context.new_page()
    page.goto(link)
    expect(page.get_by_role("heading", name="Jobs", level=1)).to_be_visible()
    assert "code=" not in page.url
    again = console.context(is_signed_in=False)
    other = again.new_page()
    other.goto(link)
    expect(other.get_by_role("alert")).to_contain_text("does not open this service")
    context.close()
    again.close()


def test_jobs_are_searched_filtered_sorted_and_compared(page, console, jobs):
    open_jobs(page, console)
    expect(row_of(page, jobs.live)).to_contain_text("Training")
    expect(row_of(page, jobs.broken)).to_contain_text("vocab.json is not there")
    expect(row_of(page, jobs.slow)).to_contain_text("0.6")
    page.get_by_role("button", name="Failed").click()
    expect(page.get_by_role("link", name=jobs.broken)).to_be_visible()
    expect(page.get_by_role("link", name=jobs.slow)).to_have_count(0)
    expect(page).to_have_url(re.compile("status=Failed"))
    page.get_by_role("button", name="All").click()
    page.keyboard.press("/")
    page.keyboard.type("learns-")
    expect(page.get_by_role("link", name=jobs.live)).to_have_count(0)
    expect(page.get_by_role("link", name=jobs.fast)).to_be_visible()
    expect(page).to_have_url(re.compile("search=learns-"))
    page.reload()  # the query is in the address
    expect(page.get_by_label("Search jobs")).to_have_value("learns-")
    page.get_by_label("Sort by").select_option("Name")
    names = page.get_by_role("table", name="Jobs").get_by_role("link")
    expect(names).to_have_text([jobs.fast, jobs.slow])  # rows keep the chosen order
    page.get_by_label(f"Select {jobs.fast}").check()
    expect(page.get_by_text("Select another job")).to_be_visible()
    page.get_by_label(f"Select {jobs.slow}").check()
    page.get_by_role("link", name="Compare").click()
    expect(page.get_by_role("row", name=re.compile("learning_rate"))).to_contain_text("0.4")
    expect(page.get_by_role("row", name=re.compile("^loss"))).to_contain_text("0.6")
    expect(page.get_by_role("img", name="loss: chart of 2 lines")).to_be_visible()


@pytest.mark.long
def test_a_waiting_job_is_shown_as_queued_on_every_page(page, console, own_service, jobs):
    name = jobs.start_waiting()
    try:
        open_jobs(page, console)
        row = row_of(page, name)
        expect(row).to_contain_text(re.compile(r"Place 1 of 1"))
        states = page.get_by_role("group", name="Filter by status")
        states.get_by_role("button", name="Queued 1").click()
        expect(row_of(page, jobs.live)).to_have_count(0)
        assert row.get_by_role("cell").nth(2).inner_text() == "Queued"
        expect(row).not_to_contain_text(re.compile("Started|Took|just now"))
        assert [row.get_by_role("cell").nth(place).inner_text() for place in (6, 7)] == ["not yet", "\u2013"]
        for search in ("queued", "of 8 hosts"):  # its state, and its reason for waiting
            page.get_by_role("searchbox", name="Search jobs").fill(search)
            expect(row).to_be_visible()
            expect(states.get_by_role("button", name="All 1")).to_be_visible()
        open_job(page, console, name)
        expect(page.get_by_role("region", name="Why it waits")).to_contain_text("Place 1 of 1")
        head = page.get_by_label("In short")
        expect(head).to_contain_text("Queued")
        expect(head).not_to_contain_text(re.compile("Started|Starting|Running|Took|At work"))
        for panel in ("Hosts over time", "Time and money"):  # a queued job has no hosts, so it has no ledger
            expect(page.get_by_role("region", name=panel)).to_have_count(0)
        expect(page.get_by_text("Queued", exact=True).first).to_be_visible()
        top = own_service.clary("top", "--once").stdout
        assert re.search(rf"{name} +Queued +Pending .*place 1 of 1", top)
    finally:
        said = own_service.clary("stop", name).stdout
    assert said == f"{name} is Stopped\n"
    expect(page.get_by_role("button", name="Stop", exact=True)).to_have_count(0)
    expect(page.get_by_label("In short")).not_to_contain_text("Took")


def test_a_badge_shows_the_state_used_by_filters_and_the_phase_of_aws(page, console, jobs):
    page.goto(f"{console.url}/console/elsewhere")
    page.wait_for_selector("main")
    told = page.evaluate(
        """(jobs) => import("/console/base/statuses.js").then(({ badge, phaseWord }) =>
          jobs.map(([status, secondary, state]) => [
            [...badge(status, secondary, { state }).childNodes].map((one) => one.textContent).filter(Boolean).join(" "),
            phaseWord(status, secondary, state),
          ]))""",
        [
            ["InProgress", "Starting", "Queued"],
            ["InProgress", "Pending", "Queued"],
            ["InProgress", "Restarting", "Queued"],
            ["InProgress", "Downloading", "Starting"],
            ["InProgress", "Training", "Running"],
            ["Stopping", "Uploading", "Stopping"],
            ["Stopped", "MaxRuntimeExceeded", "Stopped"],
            ["Stopped", "Stopped", "Stopped"],
            ["Completed", "Completed", "Completed"],
        ],
    )
    assert told == [
        ["Queued", ""],
        ["Queued", ""],
        ["Queued Restarting", "Restarting"],
        ["Starting Downloading", "Downloading"],
        ["Running Training", "Training"],
        ["Stopping Uploading", "Uploading"],
        ["Stopped Out of time", "Out of time"],
        ["Stopped", ""],
        ["Completed", ""],
    ]


def test_times_of_a_job_are_the_same_in_console_command_and_api(page, console, own_service, jobs):
    for name in (jobs.slow, jobs.broken):
        times = page.request.get(f"{console.url}/clary/v1/jobs/{name}").json()["times"]
        said = own_service.clary("describe", name).stdout
        open_job(page, console, name)
        head = page.get_by_label("In short")
        script = "seconds => import('/console/base/words.js').then((words) => words.duration(seconds))"
        for state in ("starting", "running"):
            seconds = times[f"{state}_s"]
            assert seconds > 0
            assert f"{state} {seconds:.1f} s" in said
            words = page.evaluate(script, seconds)
            expect(head.get_by_text(state.capitalize(), exact=True).locator("xpath=..")).to_contain_text(words)
        assert f"work took {times['took_s']:.1f} s" in said
        expect(head).to_contain_text(f"Took{page.evaluate(script, times['took_s'])}")


def test_a_search_without_result_reports_it_and_can_be_cleared(page, console, jobs):
    open_jobs(page, console)
    page.get_by_label("Search jobs").fill("nothing is called this")
    expect(page.get_by_text("No job is like that")).to_be_visible()
    page.get_by_role("button", name="Show all jobs").click()
    expect(page.get_by_role("link", name=jobs.slow)).to_be_visible()


def test_keys_move_through_jobs_open_one_and_return_to_the_list(page, console, jobs):
    open_jobs(page, console)
    newest = page.get_by_role("table", name="Jobs").get_by_role("link").first.inner_text()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keys")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.keyboard.press("j")
    expect(page.get_by_role("link", name=newest, exact=True)).to_be_focused()
    page.keyboard.press("j")
    page.keyboard.press("k")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name=newest, level=1)).to_be_visible()
    page.keyboard.press("3")
    expect(page.get_by_role("tab", name="Charts")).to_have_attribute("aria-selected", "true")
    expect(page).to_have_url(re.compile("/charts$"))
    page.go_back()
    expect(page.get_by_role("tab", name="Overview")).to_have_attribute("aria-selected", "true")
    page.keyboard.press("Escape")
    expect(page.get_by_role("heading", name="Jobs", level=1)).to_be_visible()


def test_a_failed_job_shows_its_reason_its_traceback_and_its_events(page, console, jobs):
    open_job(page, console, jobs.broken)
    why = page.get_by_role("region", name=re.compile("Why it failed"))
    expect(why).to_contain_text("FileNotFoundError: vocab.json is not there")
    expect(why).to_contain_text("will not help")
    expect(page.get_by_role("region", name="Where in the program")).to_contain_text('File "<string>", line 1')
    expect(page.get_by_role("region", name=re.compile("Last lines of algo-1"))).to_contain_text("FileNotFoundError")
    expect(page.get_by_role("region", name="Downloads")).to_contain_text(f"clary cp {jobs.broken}:logs .")
    about = page.get_by_role("region", name="About")
    expect(about).to_contain_text("Image")
    expect(about).not_to_contain_text("Model")  # the job has no model
    expect(page.get_by_role("region", name="What happened, and what came of it")).to_contain_text("First cause")
    expect(page.get_by_role("region", name="Time and money")).to_contain_text("goodput")
    expect(page.get_by_role("img", name=re.compile("^algo-1: "))).to_be_visible()


@pytest.mark.long(15)
def test_an_unknown_job_has_a_page_and_no_tab_logs_an_error_in_the_browser(page, console, jobs):
    said = []
    page.on("console", lambda message: said.append(message.text))
    page.goto(f"{console.url}/console/jobs/nobody-1")
    expect(page.get_by_role("heading", name="There is no such job")).to_be_visible()
    expect(page.get_by_label("Loading")).to_have_count(0)
    # Tabs without data of this job cause no error.
    for tab in ("", "logs", "charts", "stacks", "profiles", "report", "rehearsals", "request"):
        open_job(page, console, jobs.broken, tab)
        page.wait_for_load_state("networkidle")
    assert said == []


def test_the_page_of_hosts_shows_the_machine_and_its_hosts(page, console, jobs):
    page.goto(f"{console.url}/console/hosts")
    machine = page.get_by_role("region", name="This machine")
    for what in ("Hosts", "Processors", "Memory", "GPUs", "Disk"):
        expect(machine.get_by_text(what, exact=True)).to_be_visible()
    expect(machine.get_by_role("meter", name="Disk")).to_be_visible()
    cpu = page.get_by_role("row").filter(has_text=jobs.live).first.get_by_role("cell").nth(4)
    expect(cpu).to_be_visible()
    page.set_viewport_size(PHONE)  # a phone hides the column headers
    assert "CPU" in cpu.evaluate("cell => getComputedStyle(cell, '::before').content")
    open_job(page, console, jobs.live)
    expect(page.get_by_role("region", name="Time and money")).to_contain_text("those of all hosts together")


@pytest.mark.long(10)
def test_results_of_a_job_are_downloaded_and_the_job_is_run_again(page, console, jobs):
    open_job(page, console, jobs.slow)
    expect(page.get_by_role("region", name="Downloads")).to_contain_text(f"clary cp {jobs.slow}:model .")
    page.get_by_role("button", name="Show files").click()
    model = page.get_by_role("link", name="model.tar.gz")
    answer = page.request.get(model.get_attribute("href"))  # opened without the page
    assert answer.headers["content-disposition"] == 'attachment; filename="model.tar.gz"'
    assert answer.headers["content-type"] == "application/octet-stream"
    with page.expect_download() as saved:
        model.click()
    assert saved.value.suggested_filename == "model.tar.gz"
    with page.expect_download() as saved:
        page.get_by_role("button", name="Whole log").click()
    assert "step 30/30 loss=0.60" in saved.value.path().read_text()
    page.get_by_role("button", name="Run again").click()
    dialog = page.get_by_role("dialog", name=f"Run {jobs.slow} again")
    dialog.get_by_label("Hyperparameters").fill("learning_rate = 0.2")
    again = unique("repeats")
    dialog.get_by_label("Name", exact=True).fill(again)
    dialog.get_by_role("button", name="Run it").click()
    expect(page.get_by_role("heading", name=again, level=1)).to_be_visible()
    facts = wait(jobs.aws, again)
    assert facts["HyperParameters"] == {"learning_rate": "0.2"}


@pytest.mark.long
def test_logs_are_followed_searched_and_filtered_by_host(page, console, jobs):
    open_job(page, console, jobs.live, "logs")
    log = page.get_by_role("log")
    expect(log).to_contain_text("loss=0.5")
    seen = int(re.findall(r"step (\d+)", log.inner_text())[-1])
    expect(log).to_contain_text(f"step {seen + 15} ")  # without any action of the user
    page.set_viewport_size(PHONE)  # a phone wraps lines
    seen = int(re.findall(r"step (\d+)", log.inner_text())[-1])
    expect(log).to_contain_text(f"step {seen + 10} ")
    assert log.evaluate("log => log.scrollHeight - log.scrollTop - log.clientHeight") <= 40
    expect(page.get_by_role("button", name="Follow")).to_have_attribute("aria-pressed", "true")
    page.get_by_label("Host", exact=True).select_option("algo-2")
    expect(log).not_to_contain_text("algo-1")
    page.get_by_label("Search the log").fill("TICK-7-tock")
    expect(log).not_to_contain_text("tick-6-tock")
    expect(log.locator("mark").first).to_have_text("tick-7-tock")
    expect(page).to_have_url(re.compile("search=TICK-7-tock"))
    page.get_by_label("Search the log").fill("in no line")
    expect(page.get_by_text("The whole log was searched")).to_be_visible()


def test_the_log_says_how_many_of_its_lines_are_loaded(page, console, jobs):
    open_job(page, console, jobs.slow, "logs")
    said = page.get_by_role("status").filter(has_text=re.compile("lines? loaded"))
    expect(said).to_contain_text(re.compile(r"^24 of 24 lines loaded, "))
    own = page.get_by_role("log").get_by_text(re.compile(r"^clary: "))
    expect(own).to_have_text([re.compile(f"^clary: {words}") for words in AGENT_SAYS])
    expect(page.get_by_role("log").get_by_text(re.compile(r"^step \d\d/30 "))).to_have_count(21)
    page.get_by_label("Search the log").fill("step 30/30")
    expect(said).to_contain_text(re.compile(r"^1 line loaded that matches, of a log of 24, "))
    page.get_by_label("Search the log").fill("step 2")
    expect(said).to_contain_text(re.compile(r"^10 lines loaded that match, of a log of 24, "))


def test_a_partly_loaded_log_shows_the_total_number_of_lines(page, console, jobs):
    def answer(route):  # returns only the newest lines, as for a long log; requests for older lines get no response
        if "before=" not in route.request.url:
            route.continue_(url=re.sub(r"limit=\d+", "limit=7", route.request.url))

    page.route("**/log-lines?**", answer)
    open_job(page, console, jobs.slow, "logs")
    said = page.get_by_role("status").filter(has_text=re.compile("lines? loaded"))
    expect(said).to_contain_text(re.compile(r"^7 of 24 lines loaded, "))
    page.unroute_all(behavior="ignoreErrors")


def test_charts_show_values_under_the_pointer_zoom_and_hide_lines(page, console, jobs):
    open_job(page, console, jobs.slow, "charts")
    loss = page.get_by_role("group", name="loss", exact=True)
    line = loss.get_by_role("button", name=re.compile("^loss"))
    expect(line).to_contain_text("0.6")
    plot = loss.get_by_role("img")
    plot.focus()
    for _ in range(3):
        page.keyboard.press("ArrowLeft")
    expect(line).to_contain_text("0.62")
    box = plot.bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.3, box["y"] + 60)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + 60, steps=4)
    page.mouse.up()
    reset = loss.get_by_role("button", name="Reset zoom")
    expect(reset).to_be_visible()
    expect(
        page.get_by_role("group", name="accuracy", exact=True).get_by_role("button", name="Reset zoom")
    ).to_be_visible()
    reset.click()
    expect(reset).to_be_hidden()
    loss.get_by_role("button", name="log").click()
    expect(loss.get_by_role("button", name="log")).to_have_attribute("aria-pressed", "true")
    line.click()
    expect(loss.get_by_role("img", name="loss: chart of 0 lines")).to_be_visible()
    expect(page.get_by_role("group", name="Memory", exact=True).get_by_role("img")).to_be_visible()


def test_curves_are_drawn_over_steps_and_smoothed(page, console, jobs):
    open_job(page, console, jobs.slow, "charts")
    loss = page.get_by_role("group", name="loss", exact=True)
    expect(loss.locator("path.line")).to_have_count(1)
    page.get_by_label("Horizontal axis").select_option("step")
    loss.get_by_role("img").focus()
    page.keyboard.press("ArrowLeft")
    expect(loss).to_contain_text("step 30")  # the step in its log lines
    page.get_by_label("Smoothing").fill("0.9")
    expect(loss.locator("path.line")).to_have_count(2)  # the raw values are drawn behind
    page.reload()
    expect(page.get_by_label("Smoothing")).to_have_value("0.9")
    page.goto(f"{console.url}/console/compare?jobs={jobs.slow},{jobs.fast}&axis=step&smooth=0.5")
    expect(page.get_by_role("group", name="loss", exact=True).locator("path.line")).to_have_count(4)


@pytest.mark.long(10)
@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("\x1b[31mred\x1b[0m <b>", [["red", "ansi-red"], [" <b>", ""]]),
        ("\x1b[1;38;5;2mgreen\x1b[22m on", [["green", "ansi-green ansi-bold"], [" on", "ansi-green"]]),
        ("\x1b]0;title\x07a\x1b]8;;http://evil\x1b\\b\x1b[2Kc\x1b[>4;1md\x9be", [["abcde", ""]]),
        ("end\x1b[", [["end", ""]]),
    ],
)
def test_terminal_sequences_become_colours_or_are_removed(page, console, jobs, text, pieces):
    page.goto(f"{console.url}/console/elsewhere")
    page.wait_for_selector("main")
    script = "text => import('/console/job/ansi_text.js').then((ansi) => ansi.colouredPieces(text))"
    assert [[one["text"], one["kind"]] for one in page.evaluate(script, text)] == pieces


def test_only_the_last_state_of_a_progress_bar_is_shown(page, console, jobs):
    page.goto(f"{console.url}/console/elsewhere")
    page.wait_for_selector("main")
    shown = page.evaluate(
        """async (texts) => {
          const { ProgressFolding } = await import("/console/job/progress_folding.js");
          const folding = new ProgressFolding();
          const nodes = texts.map((text) => Object.assign(document.createElement("p"), { textContent: text }));
          for (const node of nodes) folding.add({ host: "algo-1", rank: null }, node.textContent, node);
          return nodes.filter((node) => !node.classList.contains("log-folded")).map((node) => node.textContent);
        }""",
        [
            "train:  10%|#   | 1/10 [00:01<00:09]",
            "loss=0.5 at 10%",
            "train: 100%|####| 10/10 [00:10<00:00]",
            "eval:  50%|##  | 1/2 [00:01<00:01]",
            "train:  10%|#   | 1/10 [00:01<00:09]",  # the next epoch
            "train:  20%|##  | 2/10 [00:02<00:08]",
            "0it [00:00, ?it/s]",
            "998it [00:01, 998.00it/s]",
            "read: 900kB [00:01, 900kB/s]",
            "1.02kit [00:02, 510.00it/s]",
            "read: 1.2MB [00:02, 600kB/s]",
            "42 batches [1:00:02, 1.00s/ batches]",
            "43 batches [1:00:03, 1.00s/ batches]",
            "12 files [see above]",
        ],
    )
    assert shown == [
        "loss=0.5 at 10%",
        "train: 100%|####| 10/10 [00:10<00:00]",
        "eval:  50%|##  | 1/2 [00:01<00:01]",
        "train:  20%|##  | 2/10 [00:02<00:08]",
        "1.02kit [00:02, 510.00it/s]",
        "read: 1.2MB [00:02, 600kB/s]",
        "43 batches [1:00:03, 1.00s/ batches]",
        "12 files [see above]",
    ]


def test_output_printed_behind_a_progress_bar_is_never_folded_away(page, console, jobs):
    """A bar ends its line only when it is full, so other output follows it in the same line of the log."""
    page.goto(f"{console.url}/console/elsewhere")
    page.wait_for_selector("main")
    shown = page.evaluate(
        """async (texts) => {
          const { logLine, shownText } = await import("/console/job/log_line.js");
          const { ProgressFolding } = await import("/console/job/progress_folding.js");
          const folding = new ProgressFolding();
          const log = Object.assign(document.createElement("div"), { className: "log-lines log-folding" });
          document.querySelector("main").append(log);
          for (const [index, text] of texts.entries()) {
            const line = { host: "algo-1", rank: null, at_ms: index, text };
            const node = logLine(line, { search: "", hosts: ["algo-1"] });
            folding.add(line, shownText(text), node);
            log.append(node);
          }
          const isDrawn = (one) => one.getClientRects().length > 0;
          const read = () => [...log.children].filter(isDrawn).map((one) => one.querySelector(".text").innerText);
          const folded = read();
          log.classList.remove("log-folding");
          return [folded, read()];
        }""",
        texts := [
            "\r train:  10%|#   | 1/10 [00:01<00:09, a=[1, 2]]step 1 loss=0.5",
            "train:  20%|##  | 2/10 [00:02<00:08]",
            "\x1b[32mtrain:  30%|### | 3/10 [00:03<00:07]step\x1b[0m 3 loss=0.3",
            "train:  40%|### | 4/10 [00:04<00:06]",
            "7it [00:01, 7it/s]seven",
            "8it [00:01, 8it/s]",
            "train:  50%|### | 5/10 [00:05<00:05]step 5",
        ],
    )
    assert shown[0] == [
        "step 1 loss=0.5",
        "step 3 loss=0.3",
        "seven",
        "8it [00:01, 8it/s]",
        "train:  50%|### | 5/10 [00:05<00:05]step 5",
    ]
    assert [text.strip() for text in shown[1]] == [re.sub(r"\x1b\[[0-9]*m", "", text).strip() for text in texts]


def test_comparing_a_single_job_asks_for_a_second_one(page, console, jobs):
    page.goto(f"{console.url}/console/compare?jobs={jobs.slow}")
    expect(page.get_by_role("heading", name="Compare 1 job", exact=True)).to_be_visible()
    expect(page.get_by_role("region", name="Results")).to_contain_text("Completed")
    expect(page.get_by_text("Their requests are the same")).to_have_count(0)


def test_shortened_names_of_a_sweep_still_differ(page, console, jobs):
    page.goto(f"{console.url}/console/elsewhere")
    page.wait_for_selector("main")
    script = "names => import('/console/base/words.js').then((words) => words.endings(names))"
    sweep = ["sweep-of-a-model-001-9f3a", "sweep-of-a-model-002-9f3b"]
    assert page.evaluate(script, sweep) == ["\u2026001-9f3a", "\u2026002-9f3b"]
    for others in (["learns-slow", "learns-fast"], ["one-job"], ["same-name-of-two", "same-name-of-two-more"]):
        assert all(
            name.endswith(given.removeprefix("\u2026"))
            for name, given in zip(others, page.evaluate(script, others), strict=True)
        )


@pytest.mark.long(14)
def test_the_number_of_ticks_is_limited_for_numbers_of_any_size(page, console, jobs):
    open_jobs(page, console)
    for ticks in (
        "ticks([1.7e18, 1.7e18 + 4096], 4)",
        "ticks([-1e308, 1e308], 4)",
        "logTicks([0, 1])",
        "logTicks([1, Infinity])",
    ):
        found = page.evaluate(f"import('/console/charts/scales.js').then((scales) => scales.{ticks}.length)")
        assert found <= 100, ticks


@pytest.mark.long(13)
def test_a_chart_updated_while_hidden_shows_the_new_lines(page, console, jobs):
    open_jobs(page, console)
    page.evaluate(
        """async () => {
          const { LineChart } = await import("/console/charts/line_chart.js");
          const { SharedTime } = await import("/console/charts/shared_time.js");
          const lines = (...keys) => keys.map((key) => ({ key, label: key, colour: 1, points: [[0, 1], [1, 2]] }));
          const drawn = () => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
          const chart = new LineChart({ title: "own", shared: new SharedTime() });
          document.querySelector("main").append(chart.element);
          chart.setLines(lines("a"));
          await drawn();
          chart.element.hidden = true;
          await drawn();
          chart.setLines(lines("a", "b"));
          await drawn();
          chart.element.hidden = false;
        }"""
    )
    expect(page.get_by_role("img", name="own: chart of 2 lines")).to_be_visible()


def test_stacks_are_taken_and_grouped(page, console, jobs):
    open_job(page, console, jobs.live, "stacks")
    page.get_by_role("button", name="Take stacks now").click()
    expect(page.get_by_text("Attempt 1, 2 hosts")).to_be_visible()


def test_a_job_is_stopped_after_a_confirmation_that_explains_the_effect(page, console, jobs):
    name = jobs.start_live()
    open_job(page, console, name)
    page.get_by_role("button", name="Stop", exact=True).click()
    dialog = page.get_by_role("dialog", name=f"Stop {name}?")
    expect(dialog).to_contain_text("SIGTERM")
    dialog.get_by_role("button", name="Keep it running").click()
    expect(dialog).to_have_count(0)
    assert jobs.aws.sagemaker.describe_training_job(TrainingJobName=name)["TrainingJobStatus"] == "InProgress"
    page.get_by_role("button", name="Stop", exact=True).click()
    page.get_by_role("button", name="Stop the job").click()
    expect(page.get_by_role("status").filter(has_text=f"{name} is stopping")).to_be_visible()
    assert wait(jobs.aws, name)["TrainingJobStatus"] == "Stopped"
    expect(page.get_by_role("button", name="Stop", exact=True)).to_have_count(0)


def test_output_of_hostile_jobs_is_shown_as_text(page, console, jobs):
    open_job(page, console, jobs.hostile, "logs")
    expect(page.get_by_role("log")).to_contain_text(ATTACK)
    open_job(page, console, jobs.hostile, "request")
    expect(page.get_by_text(re.compile("onerror=alert")).first).to_be_visible()
    expect(page.get_by_text("API_TOKEN")).to_be_visible()
    assert "s3cr3t" not in page.content()
    open_job(page, console, jobs.hostile)
    expect(page.get_by_role("region", name=re.compile("Why it failed"))).to_contain_text("exit code: 3")
    page.goto(f"{console.url}/console/compare?jobs={jobs.hostile},{jobs.slow}")
    expect(page.get_by_text(re.compile("onerror=alert")).first).to_be_visible()
    page.goto(f"{console.url}/console/jobs?search=%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E")
    expect(row_of(page, jobs.hostile)).to_contain_text(ATTACK)  # from its failure reason
    page.goto(f"{console.url}/console/jobs/%3Cimg%20src=x%20onerror=alert(1)%3E")
    expect(page.get_by_role("main")).to_contain_text("Nothing is known of a job <img src=x onerror=alert(1)>")
    assert page.locator("img[src=x]").count() == 0


def test_findings_of_rules_progress_and_standstills_are_shown_as_text(page, console, jobs):
    """The job is real; findings that need GPUs or hours are added to the service's response."""
    changed_at = "2026-01-02T03:04:05+00:00"
    rule = {"kind": "debug", "name": ATTACK, "status": "IssuesFound", "details": f"at step 7: {ATTACK}"}
    found = {
        "rules": [
            {"kind": "debug", "name": "Overfit", "status": "NoIssuesFound", "details": "", "changed_at": changed_at},
            {**rule, "changed_at": changed_at},
        ],
        "progress": {"percent": 42.5, "done": 425, "total": 1000, "unit": "steps", "eta_s": 600.0, "source": "log"},
        "stragglers": {"is_found": True, "text": f"rank 3 on algo-2 is slow: {ATTACK}"},
        "checkpoints": {"algo-1": {"set_number": 3, "dirty_files": 2, "dirty_bytes": 5e6, "error": ATTACK}},
    }

    def answer(route):
        response = route.fetch()
        facts = {**response.json(), **found}
        facts["hosts"][0]["standstill"] = f"nothing moves {ATTACK}"
        route.fulfill(response=response, json=facts)

    page.route(f"**/clary/v1/jobs/{jobs.live}", answer)
    open_job(page, console, jobs.live)
    rules = page.get_by_role("region", name="Rules").get_by_role("listitem")
    expect(rules).to_have_text([re.compile("Issues found.*at step 7"), re.compile("Overfit.*No issues")])
    expect(page.get_by_role("progressbar", name="Progress")).to_have_attribute("aria-valuenow", "43")
    expect(page.get_by_text("425 of 1,000 steps, 10 min left")).to_be_visible()
    expect(page.get_by_role("region", name="The others wait for one")).to_contain_text(ATTACK)
    expect(page.get_by_role("region", name="It seems to stand still")).to_contain_text(ATTACK)
    expect(page.get_by_role("region", name="Checkpoints")).to_contain_text("Set 3; 2 files (5 MB) changed since")
    keep_screenshot(page, "job-findings-desktop-light")


def test_a_lost_connection_is_reported_and_the_page_continues_after_it_returns(page, console, jobs):
    open_jobs(page, console)
    page.route("**/clary/v1/**", lambda route: route.abort())
    notice = page.get_by_text("The connection to the service is lost")
    expect(notice).to_be_visible()
    expect(page.get_by_role("link", name=jobs.slow)).to_be_visible()  # loaded data stays visible
    page.unroute("**/clary/v1/**")
    page.get_by_role("button", name="Try now").click()
    expect(notice).to_be_hidden()


def test_failed_requests_for_jobs_while_scrolling_are_retried_with_pauses(page, console, jobs):
    """The list has hundreds of jobs; the service returns the first page and refuses all others."""
    asked = []

    def answer(route):
        if "after=" in route.request.url:
            asked.append(route.request.url)
            return route.fulfill(status=500, json={"message": "not now"})
        response = route.fetch()
        facts = response.json()
        first = facts["jobs"][0]
        many = [{**first, "name": f"job-{number}"} for number in range(100)]
        return route.fulfill(response=response, json={**facts, "jobs": many, "total": 900, "next": "token"})

    page.route("**/clary/v1/jobs?**", answer)
    open_jobs(page, console)
    page.evaluate("window.scrollTo(0, document.documentElement.scrollHeight)")
    with page.expect_response(re.compile("jobs\\?.*after=")):
        pass
    with page.expect_response(lambda response: "after=" not in response.url and "/jobs?" in response.url):
        pass
    page.get_by_role("link", name="Hosts").click()
    expect(page.get_by_role("heading", name="Hosts", level=1)).to_be_visible()
    assert 1 <= len(asked) <= 20  # at most one per poll of the first page, every few seconds


def test_scrolling_far_loads_the_visible_jobs_and_not_all_between(page, console, jobs):
    many = ManyJobs(page, 9000, grows=True)
    open_jobs(page, console)
    page.evaluate("window.scrollTo(0, document.documentElement.scrollHeight)")
    expect(page.get_by_role("link", name="job-0", exact=True)).to_be_visible()
    expect(page.get_by_role("link", name="job-9", exact=True)).to_be_visible()
    assert len(many.asked) <= 4  # loading every page would take eighteen requests
    page.evaluate("window.scrollTo(0, document.documentElement.scrollHeight / 2)")
    middle = page.get_by_role("link", name=re.compile("^job-44[0-9]{2}$|^job-45[0-9]{2}$")).first
    expect(middle).to_be_visible()
    name = middle.inner_text()
    top, height, said = page.evaluate(PLACE_OF, name)
    assert round(top / height) == int(said.split()[0]) - 1 - int(name.removeprefix("job-"))  # at its place
    page.evaluate("window.scrollTo(0, 0)")
    expect(page.get_by_role("link", name=re.compile("^job-90[0-9]{2}$")).first).to_be_visible()


@pytest.mark.long(10)
def test_a_window_larger_than_a_page_of_jobs_requests_them_once(page, console, jobs):
    many = ManyJobs(page, 9000)
    page.add_init_script("Object.defineProperty(window, 'innerHeight', { get: () => 60_000 })")  # 1000 rows
    open_jobs(page, console)
    expect(page.get_by_role("link", name="job-8400", exact=True)).to_be_visible()  # the last loaded row
    for _ in range(2):  # polls of the first page, each of which redraws all rows
        with page.expect_response(lambda response: "/jobs?" in response.url and "after=" not in response.url):
            pass
    assert many.asked == [100]


@pytest.mark.long(15)
def test_every_page_fits_a_phone_and_has_dark_colours(console, jobs):
    """Save screenshots of all pages for people; each page must draw, fit its width, and be dark on request."""
    places = {
        "jobs": "/console/jobs",
        "job-overview": f"/console/jobs/{jobs.broken}",
        "job-live": f"/console/jobs/{jobs.live}",
        "job-logs": f"/console/jobs/{jobs.live}/logs",
        "job-charts": f"/console/jobs/{jobs.slow}/charts",
        "job-stacks": f"/console/jobs/{jobs.live}/stacks",
        "job-report": f"/console/jobs/{jobs.slow}/report",
        "job-request": f"/console/jobs/{jobs.hostile}/request",
        "compare": f"/console/compare?jobs={jobs.slow},{jobs.fast}",
        "hosts": "/console/hosts",
        "nowhere": "/console/elsewhere",
    }
    context = console.context()
    page = context.new_page()
    grounds = set()
    for name, path in places.items():
        page.goto(f"{console.url}{path}")
        expect(page.get_by_role("main")).not_to_be_empty()
        expect(page.locator("[aria-busy=true]")).to_have_count(0)
        for size, viewport in (("desktop", {"width": 1280, "height": 820}), ("phone", PHONE)):
            page.set_viewport_size(viewport)
            for scheme in ("light", "dark"):
                page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
                page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
                keep_screenshot(page, f"{name}-{size}-{scheme}")
                grounds.add((scheme, page.evaluate("getComputedStyle(document.body).backgroundColor")))
            assert width_of(page) <= viewport["width"], f"{name} scrolls sideways on a {size}"
    assert len(grounds) == 2, grounds
    page.set_viewport_size({"width": 1280, "height": 820})
    page.emulate_media(color_scheme="light")
    page.get_by_role("button", name="Colours: system").click()
    page.get_by_role("button", name="Colours: light").click()
    page.reload()
    expect(page.get_by_role("button", name="Colours: dark")).to_be_visible()
    assert ("dark", page.evaluate("getComputedStyle(document.body).backgroundColor")) in grounds
    context.close()
