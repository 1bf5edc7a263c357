"""Accessibility of the console, for screen readers, keyboards and contrast: axe-core finds no barrier on any page.

Source: rules of axe-core for WCAG 2.0 to 2.2, levels A and AA, and its best practices.
"""

import re
from dataclasses import dataclass
from importlib import resources

import pytest
from boto3_clients import Clients, job_request, unique, wait
from console_answers import profile_answer, rehearsals_answer, tuning_answer
from console_browser import DESKTOP, PHONE, open_job
from drawing_job import DRAWS
from playwright.sync_api import expect
from running_service import start_service

pytest_plugins = ["console_fixtures"]
pytestmark = [pytest.mark.clients, pytest.mark.timeout(300), pytest.mark.xdist_group("console-barriers")]

LEARNS = (
    'for i in 1 2 3; do echo "step $i loss=0.$((9 - i))"; printf \'\\033[31mred\\033[0m \\033[33myellow\\033[0m '
    "\\033[30mblack\\033[0m\\n'; sleep 1; done; exit 3"
)
METRICS = [{"Name": "loss", "Regex": "loss=([0-9.]+)"}]
VIEWS = [(viewport, scheme) for viewport in (DESKTOP, PHONE) for scheme in ("light", "dark")]
FIND = "() => axe.run(document, { resultTypes: ['violations'] }).then((found) => found.violations)"


@pytest.fixture(scope="module")
def own_service(tmp_path_factory):
    """A service of this module."""
    own = start_service(tmp_path_factory.mktemp("barriers"))
    yield own
    own.clary("down")


@dataclass(frozen=True, kw_only=True)
class Jobs:
    """Names of jobs by their behaviour."""

    fails: str
    lives: str
    waits: str
    draws: str  # draws pictures
    keeps: str  # keeps its host


@pytest.fixture(scope="module")
def jobs(own_service):
    """Jobs that each show one kind of page; the waiting job is created after the finished jobs have ended."""
    aws = Clients(own_service)

    def start(label, command, **resources):
        request = job_request(unique(label), command, HyperParameters={"learning_rate": "0.1"})
        request["AlgorithmSpecification"]["MetricDefinitions"] = METRICS
        request["ResourceConfig"] |= resources
        aws.sagemaker.create_training_job(**request)
        return request["TrainingJobName"]

    lives = start("lives", "while :; do echo loss=0.5; sleep 1; done")
    ended = [start("fails", LEARNS), start("draws", DRAWS), start("keeps", "true", KeepAlivePeriodInSeconds=3600)]
    for name in ended:
        wait(aws, name)
    wait(aws, lives, until=("Training",))
    waits = start("waits", "true", InstanceCount=8)
    wait(aws, waits, until=("Pending",))
    fails, draws, keeps = ended
    return Jobs(fails=fails, lives=lives, waits=waits, draws=draws, keeps=keeps)


@pytest.fixture(scope="module")
def axe():
    """The script of axe-core, from the installed package."""
    return (resources.files("axe_playwright_python") / "axe.min.js").read_text(encoding="utf-8")


def barriers(page, axe, where):
    """Return the barriers found on a page, for each size and colour scheme."""
    found = []
    page.evaluate(axe)
    for viewport, scheme in VIEWS:
        page.set_viewport_size(viewport)
        page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        for rule in page.evaluate(FIND):
            nodes = [node["html"][:160] + " " + node["failureSummary"][:300] for node in rule["nodes"][:3]]
            found.append((where, viewport["width"], scheme, rule["id"], nodes))
    return found


@pytest.mark.long(50)
def test_no_page_has_a_barrier(console, jobs, axe):
    places = [
        "/console/jobs",
        f"/console/compare?jobs={jobs.fails},{jobs.lives}",
        "/console/jobs/nobody-1",
        "/console/tuning",
        "/console/tuning/nobody-1",
        "/console/elsewhere",
        f"/console/jobs/{jobs.lives}",
        f"/console/jobs/{jobs.waits}",
        *(
            f"/console/jobs/{jobs.fails}{tab}"
            for tab in ("", "/logs", "/charts", "/stacks", "/profiles", "/report", "/rehearsals", "/request")
        ),
    ]
    context = console.context()
    page = context.new_page()
    found = []
    for place in places:
        page.goto(f"{console.url}{place}")
        expect(page.get_by_role("main")).not_to_be_empty()
        expect(page.locator("[aria-busy=true]")).to_have_count(0)
        page.wait_for_load_state("networkidle") if jobs.lives not in place and jobs.waits not in place else None
        found += barriers(page, axe, place)
    context.close()
    assert not found, "\n".join(map(str, found))


@pytest.mark.long(10)
def test_no_page_with_rare_content_has_a_barrier(page, console, jobs, axe):
    """Pages of a waiting job, kept hosts, a dump and pictures; certificate and profile are prepared responses."""
    page.route(
        f"**/clary/v1/jobs/{jobs.lives}/rehearsals**",
        lambda route: route.fulfill(json=rehearsals_answer(jobs.lives, "the loss parts")),
    )
    page.route(
        f"**/clary/v1/jobs/{jobs.lives}/profile**",
        lambda route: route.fulfill(json=profile_answer(jobs.lives, "all_reduce")),
    )
    tuned = tuning_answer("tuned", "relu")
    page.route("**/clary/v1/tuning/tuned", lambda route: route.fulfill(json=tuned))
    page.route("**/clary/v1/tuning", lambda route: route.fulfill(json={"tuning_jobs": [tuned]}))
    found = []

    def look(place, *, sees):
        page.goto(f"{console.url}{place}")
        expect(sees).to_be_visible()
        return barriers(page, axe, place)

    found += look("/console/jobs?status=Queued", sees=page.get_by_role("link", name=jobs.waits))
    found += look(f"/console/jobs/{jobs.waits}", sees=page.get_by_role("region", name="Why it waits"))
    pools = page.get_by_role("table", name="Pools")
    found += look("/console/hosts", sees=pools.get_by_role("link", name=jobs.keeps))
    found += look(f"/console/jobs/{jobs.fails}", sees=page.get_by_role("region", name=re.compile("^Last lines of")))
    of_live = f"/console/jobs/{jobs.lives}"
    found += look(f"{of_live}/rehearsals", sees=page.get_by_role("region", name=re.compile("^FAIL: the job does not")))
    found += look(f"{of_live}/profiles", sees=page.get_by_role("region", name="Collectives across ranks"))
    open_job(page, console, jobs.lives, "stacks")
    page.get_by_role("button", name="Take stacks now").click()
    expect(page.get_by_text("Attempt 1, 1 host")).to_be_visible()
    found += barriers(page, axe, "stacks")
    found += look(f"/console/jobs/{jobs.draws}/charts", sees=page.get_by_role("img", name="samples/ring at step 1,050"))
    found += look("/console/tuning", sees=page.get_by_role("link", name="tuned", exact=True))
    found += look("/console/tuning/tuned", sees=page.get_by_role("meter", name="Importance of lr"))
    assert not found, "\n".join(map(str, found))


@pytest.mark.long
def test_no_dialog_has_a_barrier(page, console, jobs, axe):
    found = []
    for job, button in ((jobs.fails, "Run again"), (jobs.lives, "Stop"), (jobs.lives, "Rehearse")):
        open_job(page, console, job)
        page.get_by_role("button", name=button, exact=True).click()
        expect(page.get_by_role("dialog")).to_be_visible()
        found += barriers(page, axe, button)
        page.keyboard.press("Escape")
    assert not found, "\n".join(map(str, found))


def test_the_sign_in_page_has_no_barrier(console, axe):
    context = console.context(is_signed_in=False)
    page = context.new_page()
    page.goto(f"{console.url}/console/jobs")
    expect(page.get_by_role("button", name="Sign in")).to_be_visible()
    found = barriers(page, axe, "sign in")
    context.close()
    assert not found, "\n".join(map(str, found))
