"""Histograms and images of a real job in a real browser: chosen by step and by keys; hostile content is harmless."""

import re

import pytest
from boto3_clients import Clients, job_request, unique, wait
from console_browser import BELOW_THE_HEAD, PHONE, keep_screenshot, width_of
from drawing_job import DRAWS
from playwright.sync_api import expect

pytest_plugins = ["console_fixtures"]
pytestmark = [pytest.mark.clients, pytest.mark.timeout(300), pytest.mark.xdist_group("console-pictures")]


@pytest.fixture(scope="module")
def job(service):
    """A job whose program has written the whole event file."""
    aws, name = Clients(service), unique("pictures")
    aws.sagemaker.create_training_job(**job_request(name, DRAWS))
    facts = wait(aws, name)
    assert facts["TrainingJobStatus"] == "Completed", facts.get("FailureReason")
    return name


@pytest.fixture(scope="module")
def own_service(service):
    """The service shared by all tests of a session."""
    return service


@pytest.fixture
def page(console, job):
    """The charts of the job."""
    context = console.context()
    page = context.new_page()
    page.goto(f"{console.url}/console/jobs/{job}/charts")
    expect(page.get_by_role("region", name="Images")).to_be_visible()
    yield page
    context.close()


def test_histograms_are_drawn_over_their_steps_and_one_of_them_is_chosen(page):
    histograms = page.get_by_role("region", name="Histograms")
    expect(histograms).to_contain_text("2 tags")
    weights = histograms.get_by_role("group", name="weights/layer 1")
    drawn = weights.get_by_role("img", name="weights/layer 1: 24 histograms, from step 0 to step 1,150")
    expect(drawn).to_be_visible()
    slider = weights.get_by_role("slider", name="Step of weights/layer 1")
    expect(slider).to_have_attribute("aria-valuetext", "step 1,150, 24 of 24")
    expect(weights).to_contain_text(re.compile(r"1,000 values from -\d.* to \d"))
    slider.focus()
    page.keyboard.press("ArrowLeft")
    expect(weights).to_contain_text("step 1,100 (23 of 24)")
    page.keyboard.press("Home")
    expect(weights).to_contain_text("step 0 (1 of 24)")
    box = drawn.bounding_box()
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + 60)
    expect(weights).not_to_contain_text("step 0 (1 of 24)")
    expect(histograms.get_by_role("slider", name="Step of gradients")).to_have_attribute(
        "aria-valuetext", "step 1,150, 24 of 24"
    )


def test_images_are_shown_by_step_with_alternative_text(page):
    ring = page.get_by_role("region", name="Images").get_by_role("group", name="samples/ring")
    picture = ring.get_by_role("img", name="samples/ring at step 1,050")
    expect(picture).to_be_visible()
    expect(ring).to_contain_text(re.compile(r"28 \S 28, \d"))
    assert picture.evaluate("image => image.decode().then(() => image.naturalWidth)") == 28
    ring.get_by_role("slider", name="Step of samples/ring").focus()
    page.keyboard.press("Home")
    expect(ring.get_by_role("img", name="samples/ring at step 0")).to_be_visible()
    expect(ring).to_contain_text("step 0 (1 of 8)")


def test_a_picture_is_served_with_headers_that_forbid_scripts(page, console, job):
    image = page.get_by_role("img", name="samples/ring at step 1,050")
    answer = page.request.get(f"{console.url}{image.get_attribute('src')}")
    headers = answer.headers
    assert answer.body().startswith(b"\x89PNG")
    assert headers["content-type"] == "image/png"
    assert headers["x-content-type-options"] == "nosniff"
    assert "sandbox" in headers["content-security-policy"]
    other = page.request.get(f"{console.url}/clary/v1/jobs/{job}/tensorboard?image=999999999")
    assert (other.status, other.headers["content-type"]) == (404, "application/json")


def test_for_a_picture_that_is_not_kept_its_location_is_shown(page, job):
    def answer(route):
        response = route.fetch()
        pictures = [{**one, "is_kept": one["step"] > 0, "size_bytes": 9_000_000} for one in response.json()["pictures"]]
        return route.fulfill(response=response, json={"pictures": pictures})

    page.route(f"**/clary/v1/jobs/{job}/tensorboard?kind=image*", answer)
    page.reload()
    ring = page.get_by_role("group", name="samples/ring")
    expect(ring.get_by_role("img", name="samples/ring at step 1,050")).to_be_visible()
    ring.get_by_role("slider").focus()
    page.keyboard.press("Home")
    expect(ring).to_contain_text(
        "step 0 is too large to be kept, or no PNG, JPEG or GIF. It stands in output/tensorboard"
    )
    expect(ring.get_by_role("img")).to_be_hidden()
    expect(ring).to_contain_text("9 MB")
    page.keyboard.press("End")
    expect(ring.get_by_role("img", name="samples/ring at step 1,050")).to_be_visible()


def test_further_tags_are_shown_on_request_and_hostile_ones_as_text(page, console, job):
    """The job is real; the service's response is changed so that its model has many tags."""
    attack = "<img src=x onerror=alert(1)>"
    bucket = [[-1.0, 1.0, 5.0]]

    def answer(route):
        response = route.fetch()
        if "tag=" in route.request.url:
            pictures = [{"id": step, "step": step, "buckets": bucket, "file": "f", "offset": 0} for step in (1, 2)]
            return route.fulfill(response=response, json={"pictures": pictures})
        names = [attack, *(f"layer {number}" for number in range(20))]
        one = {"kind": "histogram", "num_values": 2, "num_seen": 2, "last_step": 2}
        return route.fulfill(response=response, json={"tags": [{**one, "tag": name} for name in names]})

    page.route(f"**/clary/v1/jobs/{job}/tensorboard*", answer)
    page.reload()
    histograms = page.get_by_role("region", name="Histograms")
    expect(histograms).to_contain_text("21 tags")
    expect(histograms.get_by_role("slider")).to_have_count(8)
    expect(histograms.get_by_role("heading", name=attack)).to_be_visible()
    histograms.get_by_role("button", name="Show more").click()
    expect(histograms.get_by_role("slider")).to_have_count(21)
    expect(histograms.get_by_role("button", name="Show more")).to_be_hidden()
    expect(page.get_by_role("region", name="Images")).to_be_hidden()
    assert page.locator("img[src=x]").count() == 0


def test_pictures_fit_a_phone_in_both_colours(page):
    expect(page.get_by_role("img", name="samples/ring at step 1,050")).to_be_visible()
    for size, viewport in (("desktop", {"width": 1280, "height": 820}), ("phone", PHONE)):
        page.set_viewport_size(viewport)
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
            for heading in ("Histograms", "Images"):
                page.get_by_role("heading", name=heading).evaluate(BELOW_THE_HEAD)
                page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
                keep_screenshot(page, f"job-{heading.lower()}-{size}-{scheme}")
        assert width_of(page) <= viewport["width"], f"the charts scroll sideways on a {size}"


def test_clary_metrics_lists_images_and_histograms(service, job):
    lines = [line.split() for line in service.clary("metrics", job, "--training").stdout.splitlines()]
    assert ["samples/ring", "image", "1050", "8", "8"] in lines
    assert ["gradients", "histogram", "1150", "24", "24"] in lines


def test_charts_of_an_ended_job_follow_the_chosen_series(page):
    page.get_by_role("button", name="All series").click()
    expect(page.get_by_role("group", name="Agent memory", exact=True)).to_be_visible()


def test_a_slider_follows_the_newest_step_until_moved_and_survives_thinning(page):
    said = page.evaluate(
        """import('/console/charts/step_slider.js').then(({ StepSlider }) => {
          const items = (...steps) => steps.map((step) => ({ id: step, step }));
          const shown = [];
          const slider = new StepSlider({ title: 'x', changed: (item) => shown.push(item.step) });
          slider.setItems([]);
          slider.setItems(items(10, 20));
          slider.setItems(items(10, 20, 30));
          slider.choose(1);
          slider.setItems(items(10, 20, 30, 40));
          slider.setItems(items(10, 30, 40, 50));
          slider.choose(3);
          slider.setItems(items(10, 50, 60));
          return shown;
        })"""
    )
    assert said == [20, 30, 20, 20, 10, 50, 60]


def test_hostile_histograms_are_resampled_or_dropped(page):
    found = page.evaluate(
        """import('/console/charts/densities.js').then(({ gridOf, runsOf, summaryOf }) => {
          const grid = (...buckets) => gridOf([{ step: 1, buckets }]);
          const sum = (column) => column.reduce((all, share) => all + share, 0);
          return {
            nothing: grid(),
            endless: grid([-1.7e308, 1.7e308, 1]),
            single: sum(grid([0, 0, 5]).columns[0]),
            wide: sum(grid([0, 1, 5], [0, 100, 5], [99, 100, 1e300]).columns[0]),
            empty: [summaryOf([]), summaryOf([[0, 1, 0]])],
            runs: runsOf([0, 1, 1, 0, 1], 1),
          };
        })"""
    )
    assert (found["nothing"], found["endless"], found["empty"]) == (None, None, [None, None])
    assert found["single"] == pytest.approx(1)
    assert found["wide"] == pytest.approx(1)
    assert found["runs"] == [[6, 1, 3], [6, 4, 5]]
