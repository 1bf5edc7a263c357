"""Fixtures for tests of the console in Chromium; a module loads them by `pytest_plugins = ["console_fixtures"]`.

A module defines `own_service`, the service whose console is tested. It may replace the fixture `page` by its own.
"""

import pytest
from console_browser import Browser, Console
from playwright.sync_api import sync_playwright


@pytest.fixture(scope="module")
def browser(leftover_owners):
    """Chromium; its processes are excused from the check for leftovers."""
    texts = ("chromium", "playwright/driver")
    for text in texts:
        leftover_owners.excuse(text, "the browser of a module starts a process for every page")
    with sync_playwright() as playwright:
        chromium = Browser(playwright)
        yield chromium
        chromium.close()
    for text in texts:
        leftover_owners.withdraw(text)


@pytest.fixture
def console(browser, own_service):
    """The console; at the end of a test its pages must have had no errors."""
    opened = Console(browser, own_service)
    yield opened
    opened.assert_calm()


@pytest.fixture
def page(console):
    """A page of a signed-in user."""
    context = console.context()
    yield context.new_page()
    context.close()
