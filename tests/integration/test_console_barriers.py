"""Barriers for people who read with a screen reader, by keys, or need contrast: axe-core finds none on any page.

Source: rules of axe-core for WCAG 2.0 to 2.2, levels A and AA, and its best practices.
"""

from importlib import resources

import pytest
from console_browser import DESKTOP, PHONE, open_job
from playwright.sync_api import expect
from running_service import start_service
from test_clients_boto3 import Clients, job_request, unique, wait

pytest_plugins = ["console_fixtures"]
pytestmark = [pytest.mark.clients, pytest.mark.timeout(300), pytest.mark.xdist_group("service")]

LEARNS = (
    'for i in 1 2 3; do echo "step $i loss=0.$((9 - i))"; printf \'\\033[31mred\\033[0m \\033[33myellow\\033[0m '
    "\\033[30mblack\\033[0m\\n'; sleep 1; done; exit 3"
)
METRICS = [{"Name": "loss", "Regex": "loss=([0-9.]+)"}]
VIEWS = [(viewport, scheme) for viewport in (DESKTOP, PHONE) for scheme in ("light", "dark")]
FIND = "() => axe.run(document, { resultTypes: ['violations'] }).then((found) => found.violations)"


@pytest.fixture(scope="module")
def own_service(tmp_path_factory):
    """A service of its own."""
    own = start_service(tmp_path_factory.mktemp("barriers"))
    yield own
    own.clary("down")


@pytest.fixture(scope="module")
def jobs(own_service):
    """A job that failed and one that runs."""
    aws = Clients(own_service)
    names = []
    for label, command in (("fails", LEARNS), ("lives", "while :; do echo loss=0.5; sleep 1; done")):
        request = job_request(unique(label), command, HyperParameters={"learning_rate": "0.1"})
        request["AlgorithmSpecification"]["MetricDefinitions"] = METRICS
        aws.sagemaker.create_training_job(**request)
        names.append(request["TrainingJobName"])
    wait(aws, names[0])
    wait(aws, names[1], until=("Training",))
    return names


@pytest.fixture(scope="module")
def axe():
    """The script of axe-core, which the package brings along."""
    return (resources.files("axe_playwright_python") / "axe.min.js").read_text(encoding="utf-8")


def barriers(page, axe, where):
    """Return what is found on a page in each size and colour."""
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


def test_no_page_has_a_barrier(console, jobs, axe):
    failed, live = jobs
    places = [
        "/console/jobs",
        "/console/hosts",
        f"/console/compare?jobs={failed},{live}",
        "/console/jobs/nobody-1",
        "/console/elsewhere",
        f"/console/jobs/{live}",
        *(
            f"/console/jobs/{failed}{tab}"
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
        page.wait_for_load_state("networkidle") if live not in place else None
        found += barriers(page, axe, place)
    context.close()
    assert not found, "\n".join(map(str, found))


def test_no_dialog_has_a_barrier(page, console, jobs, axe):
    failed, live = jobs
    found = []
    for job, button in ((failed, "Run again"), (live, "Stop"), (live, "Rehearse")):
        open_job(page, console, job)
        page.get_by_role("button", name=button, exact=True).click()
        expect(page.get_by_role("dialog")).to_be_visible()
        found += barriers(page, axe, button)
        page.keyboard.press("Escape")
    assert not found, "\n".join(map(str, found))


def test_signing_in_has_no_barrier(console, axe):
    context = console.context(is_signed_in=False)
    page = context.new_page()
    page.goto(f"{console.url}/console/jobs")
    expect(page.get_by_role("button", name="Sign in")).to_be_visible()
    found = barriers(page, axe, "sign in")
    context.close()
    assert not found, "\n".join(map(str, found))
