"""Chromium for tests of the console, signed in; it records errors of pages and the hosts of requests."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from playwright.sync_api import expect

from needs import NEEDS, require

CHROMIUM = NEEDS["chromium"].path
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PATIENCE_MS = 45_000  # limit of every wait: a machine under heavy load responds late
SCREENSHOTS = Path(__file__).resolve().parents[3] / "build/console-screenshots"
DESKTOP = {"width": 1280, "height": 820}
PHONE = {"width": 360, "height": 740}
BELOW_THE_HEAD = "heading => window.scrollTo(0, heading.getBoundingClientRect().top + window.scrollY - 70)"
VIEWS = (("desktop", DESKTOP, "light"), ("phone", PHONE, "dark"))
# The browser logs this for every unsuccessful response; pages show the meaning of the response.
_OF_THE_BROWSER = "Failed to load resource"


@dataclass
class Watched:
    """Events noticed in one browser context."""

    errors: list = field(default_factory=list)  # errors of scripts and of the content security policy
    dialogs: list = field(default_factory=list)  # opened only by `alert` and similar calls; the console opens none
    hosts: set = field(default_factory=set)  # hosts to which a request was sent

    def follow(self, page):
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("console", self._said)
        page.on("dialog", self._asked)
        page.on("request", lambda request: self.hosts.add(urlsplit(request.url).netloc))

    def _said(self, message):
        if message.type in ("error", "warning") and not message.text.startswith(_OF_THE_BROWSER):
            self.errors.append(message.text)

    def _asked(self, dialog):
        self.dialogs.append(dialog.message)
        dialog.dismiss()


class Browser:
    """Chromium; if it dies, the current test fails and the next test gets a new one."""

    def __init__(self, playwright):
        self._playwright = playwright
        self._chromium = launch(playwright)

    def new_context(self, **options):
        if not self._chromium.is_connected():
            self._chromium = launch(self._playwright)
        return self._chromium.new_context(**options)

    def close(self):
        self._chromium.close()


class Console:
    """The console of one service, opened in a browser."""

    def __init__(self, browser, service):
        self._browser = browser
        self.url = service.environment["AWS_ENDPOINT_URL"]
        self.token = json.loads((service.home / "secrets/root.json").read_text())["admin_token"]
        self.watched = Watched()

    def context(self, *, viewport=DESKTOP, is_signed_in=True, **options):
        """Return a fresh context, which the caller closes."""
        context = self._browser.new_context(viewport=viewport, **options)
        context.set_default_timeout(PATIENCE_MS)
        if is_signed_in:
            answer = context.request.post(
                f"{self.url}/clary/v1/session",
                data=json.dumps({"token": self.token}),
                headers={"Content-Type": "application/json"},
            )
            assert answer.ok, answer.text()
        context.on("page", self.watched.follow)
        return context

    def assert_calm(self):
        """Assert that no page had an error or a dialog, and that no request went to another host."""
        assert self.watched.errors == []
        assert self.watched.dialogs == []
        assert self.watched.hosts <= {urlsplit(self.url).netloc}


def launch(playwright):
    """Start the browser; skip the test if there is no browser."""
    require("chromium")
    expect.set_options(timeout=PATIENCE_MS)
    return playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)


def open_job(page, console, name, tab=""):
    page.goto(f"{console.url}/console/jobs/{name}{tab and f'/{tab}'}")
    expect(page.get_by_role("heading", name=name, level=1)).to_be_visible()


def keep_screenshot(page, name, *, is_whole=False):
    """Save a screenshot of a page for people: the visible part, or the whole page."""
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=str(SCREENSHOTS / f"{name}.png"), full_page=is_whole)


def width_of(page):
    """Return the width of the document; if it exceeds the window's, the page scrolls sideways."""
    return page.evaluate("document.documentElement.scrollWidth")


def keep_views(page, name):
    """Save screenshots of a page for a desktop in light and a phone in dark colours; the page must fit the width."""
    before = page.viewport_size
    page.evaluate("window.scrollTo(0, 0)")
    for size, viewport, scheme in VIEWS:
        page.set_viewport_size(viewport)
        page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        keep_screenshot(page, f"{name}-{size}-{scheme}", is_whole=not page.get_by_role("dialog").count())
        assert width_of(page) <= viewport["width"], f"{name} scrolls sideways on a {size}"
    page.set_viewport_size(before)
    page.emulate_media(color_scheme="light")
