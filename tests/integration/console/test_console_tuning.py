"""Tuning jobs in the console: a real job in a real browser, and a prepared page with forty trials."""

import re

import pytest
from boto3_clients import Clients, job_request, unique
from console_answers import tuning_answer
from console_browser import PHONE, keep_views, width_of
from playwright.sync_api import expect
from program_jobs import archive_of, put

pytest_plugins = ["console_fixtures"]
pytestmark = [pytest.mark.clients, pytest.mark.timeout(300), pytest.mark.xdist_group("console-tuning")]

LONG_MS = 150_000  # limit for trials that run within a test
ATTACK = "<img src=x onerror=alert(1)><script>alert(2)</script>"
PROGRAM = """
import argparse, time
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
x = parser.parse_known_args()[0].lr
for step in range(3):
    print(f"loss={x * x + 1 / (step + 1):.4f}", flush=True)
    time.sleep(0.2)
"""


@pytest.fixture(scope="module")
def own_service(service):
    """The service shared by all tests of a session."""
    return service


@pytest.fixture(scope="module")
def tuned(own_service):
    """A tuning job of three trials, two at a time, that has just started."""
    aws, name = Clients(own_service), unique("tuned")
    job = job_request("x", "")
    source = put(aws, f"code/{name}/sourcedir.tar.gz", archive_of({"train.py": PROGRAM}))
    definition = {member: job[member] for member in ("RoleArn", "OutputDataConfig", "StoppingCondition")}
    specification = {key: value for key, value in job["AlgorithmSpecification"].items() if "Container" not in key}
    specification["MetricDefinitions"] = [{"Name": "loss", "Regex": "loss=([0-9.]+)"}]
    aws.sagemaker.create_hyper_parameter_tuning_job(
        HyperParameterTuningJobName=name,
        HyperParameterTuningJobConfig={
            "Strategy": "Random",
            "ResourceLimits": {"MaxNumberOfTrainingJobs": 3, "MaxParallelTrainingJobs": 2},
            "HyperParameterTuningJobObjective": {"Type": "Minimize", "MetricName": "loss"},
            "ParameterRanges": {"ContinuousParameterRanges": [{"Name": "lr", "MinValue": "0.1", "MaxValue": "1"}]},
        },
        TrainingJobDefinition={
            **definition,
            "AlgorithmSpecification": specification,
            "ResourceConfig": job["ResourceConfig"],
            "StaticHyperParameters": {
                "sagemaker_program": "train.py",
                "sagemaker_submit_directory": source,
                "kept": "as it is",
            },
        },
    )
    return name


def open_tuning(page, console, name, query=""):
    page.goto(f"{console.url}/console/tuning/{name}{query}")
    expect(page.get_by_role("heading", name=name, level=1)).to_be_visible()


def answer(page, name, text="relu", **options):
    """Make the browser get a prepared page of a tuning job of forty trials."""
    page.route(f"**/clary/v1/tuning/{name}", lambda route: route.fulfill(json=tuning_answer(name, text, **options)))


def rows_of(page):
    return page.get_by_role("region", name="Trials", exact=True).locator("tbody tr")


@pytest.mark.long(15)
def test_a_tuning_job_is_followed_to_its_end_and_its_trials_link_back_to_it(page, console, tuned):
    page.goto(f"{console.url}/console/jobs")
    page.get_by_role("navigation").get_by_role("link", name="Tuning").click()
    row = page.get_by_role("row").filter(has=page.get_by_role("link", name=tuned, exact=True))
    expect(row).to_contain_text("minimize loss")
    row.get_by_role("link", name=tuned, exact=True).click()
    head = page.get_by_label("In short")
    expect(head).to_contain_text("all training jobs have ended", timeout=LONG_MS)  # the page refreshes itself
    expect(head).to_contain_text("3 of 3")
    expect(rows_of(page)).to_have_count(3)
    expect(rows_of(page).first).to_contain_text("best")
    expect(page.get_by_role("img", name="Best objective so far: chart of 2 lines")).to_be_visible()
    expect(page.get_by_role("region", name="Importance")).to_contain_text("It needs 8 training jobs")
    expect(page.get_by_role("region", name="Fixed hyperparameters")).to_contain_text("as it is")
    rows_of(page).first.get_by_role("link").click()
    expect(page).to_have_url(re.compile(f"/console/jobs/{tuned}-00[123]-"))
    page.get_by_label("In short").get_by_role("link", name=tuned).click()
    expect(page.get_by_role("heading", name=tuned, level=1)).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("heading", name="Tuning", level=1)).to_be_visible()


def test_a_tuning_job_is_stopped_after_a_confirmation(page, console):
    asked = []

    def stopped(route):
        asked.append(route.request.headers.get("x-clary-csrf"))
        route.fulfill(json={"name": "many", "status": "Stopping"})

    page.route("**/clary/v1/tuning/many/stop", stopped)
    answer(page, "many", is_running=True)
    open_tuning(page, console, "many")
    page.get_by_role("button", name="Stop", exact=True).click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("No further trial starts.")
    dialog.get_by_role("button", name="Keep it running").click()
    assert asked == []
    page.get_by_role("button", name="Stop", exact=True).click()
    answer(page, "many")
    dialog.get_by_role("button", name="Stop the tuning job").click()
    expect(page.get_by_text("many is stopping")).to_be_visible()
    expect(page.get_by_role("button", name="Stop", exact=True)).to_have_count(0)
    assert len(asked) == 1
    assert asked[0], "a change carries the session's token"


def test_the_best_objective_is_drawn_over_trials_or_time_as_set_in_the_address(page, console):
    answer(page, "many")
    open_tuning(page, console, "many")
    chart = page.get_by_role("group", name="Best objective so far")
    expect(chart.get_by_role("button", name=re.compile("^Each trial 0.[0-9]+"))).to_be_visible()
    chart.get_by_label("Horizontal axis").select_option("Over time")
    expect(page).to_have_url(re.compile(r"\?axis=time$"))
    expect(chart).to_contain_text("20 min")
    expect(chart.get_by_label("Horizontal axis")).to_be_focused()
    page.reload()
    expect(chart.get_by_label("Horizontal axis")).to_have_value("time")
    chart.get_by_role("img").focus()
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    expect(chart.locator(".at")).to_contain_text("min")


def test_trials_of_the_parallel_axes_are_named_by_pointer_and_by_keys(page, console):
    answer(page, "many")
    open_tuning(page, console, "many")
    region = page.get_by_role("region", name="Trials over their hyperparameters")
    lines = region.get_by_role("group", name=re.compile("[13]0 trials; arrows go from trial to trial")).get_by_role(
        "img"
    )
    expect(lines).to_have_count(30)  # trials of the first definition
    best = region.locator(".trial[tabindex='0']")
    expect(best).to_have_count(1)
    best.focus()
    first = region.locator(".trial-said").inner_text()
    assert first.startswith("Trial 25: accuracy 0.9, lr ")
    page.keyboard.press("ArrowDown")
    expect(region.locator(".trial-said")).not_to_have_text(first)
    expect(page.locator("tr.row-marked")).to_have_count(1)
    page.keyboard.press("Home")
    expect(region.locator(".trial-said")).to_have_text(first)
    drawing = region.locator("svg.axes")
    drawing.hover(position={"x": 60, "y": 60})
    expect(region.locator(".trial-said")).not_to_have_text(first)
    highest = region.locator(".trial-said").inner_text()
    drawing.hover(position={"x": 60, "y": 280})
    expect(region.locator(".trial-said")).not_to_have_text(highest)
    region.get_by_label("Training job definition").select_option("large")
    expect(lines).to_have_count(10)


def test_the_table_of_trials_is_sorted_by_any_column(page, console):
    answer(page, "many")
    open_tuning(page, console, "many")
    numbers = rows_of(page).locator("td:first-child")
    expect(numbers.first).to_have_text("25")  # the best trial first
    expect(page.get_by_role("columnheader", name="accuracy")).to_have_attribute("aria-sort", "descending")
    page.get_by_role("button", name="#").click()
    expect(numbers.first).to_have_text("1")
    page.get_by_role("button", name="#").click()
    expect(numbers.first).to_have_text("40")
    expect(page.get_by_role("button", name="#")).to_be_focused()
    page.get_by_role("button", name="lr").click()
    expect(page).to_have_url(re.compile("sort=p.lr&order=asc"))
    expect(rows_of(page).first).to_contain_text("1.26e-5")
    page.get_by_role("button", name="Why it stopped").click()
    expect(numbers.first).to_have_text("9")  # a failed trial; trials without a reason are sorted last
    page.reload()
    expect(numbers.first).to_have_text("9")


def test_a_table_that_is_refreshed_keeps_its_order_and_the_focus(page, console):
    answer(page, "many", is_running=True)
    open_tuning(page, console, "many")
    expect(rows_of(page).filter(has_text="so far").first).to_be_visible()
    page.get_by_role("button", name="#").click()
    link = rows_of(page).first.get_by_role("link")
    link.focus()
    expect(page.get_by_label("In short")).to_contain_text("after 60 training jobs; when accuracy reaches relu")
    answer(page, "many")
    expect(page.get_by_label("In short")).to_contain_text("it ended relu")
    expect(rows_of(page).locator("td:first-child").first).to_have_text("1")
    expect(link).to_be_focused()


def test_the_page_of_an_unknown_tuning_job_links_to_the_list(page, console):
    open_tuning(page, console, "nobody")
    expect(page.get_by_role("heading", name="There is no such tuning job")).to_be_visible()
    page.get_by_role("link", name="See all tuning jobs").click()
    expect(page.get_by_role("heading", name="Tuning", level=1)).to_be_visible()


def test_hostile_names_and_reasons_are_shown_as_text(page, console):
    answer(page, "hostile", ATTACK)
    open_tuning(page, console, "hostile")
    expect(page.get_by_label("In short")).to_contain_text(f"it ended {ATTACK}")
    expect(page.get_by_role("meter", name=f"Importance of {ATTACK}")).to_be_visible()
    expect(rows_of(page).filter(has_text=f"early stopping: {ATTACK}")).to_have_count(1)
    assert page.locator("img[src=x]").count() == 0
    page.set_viewport_size(PHONE)
    assert width_of(page) <= PHONE["width"]


@pytest.mark.long(15)
def test_the_pages_fit_a_phone_and_are_kept_as_pictures(page, console, tuned):
    page.goto(f"{console.url}/console/tuning")
    expect(page.get_by_role("link", name=tuned, exact=True)).to_be_visible()
    keep_views(page, "tuning-list")
    answer(page, "many", is_running=True)
    open_tuning(page, console, "many")
    expect(rows_of(page)).to_have_count(40)
    keep_views(page, "tuning-job")
