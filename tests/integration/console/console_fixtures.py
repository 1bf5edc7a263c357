"""Fixtures of modules that look at the console in Chromium; such a module says `pytest_plugins = ["console_fixtures"]`.

A module has `own_service`, the service whose console it is. It may have a `page` of its own in place of this one.
"""

import pytest
from console_browser import Browser, Console
from playwright.sync_api import sync_playwright


@pytest.fixture(scope="module")
def browser(leftover_owners):
    """Chromium; it starts and ends processes as it likes."""
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
    """The console, whose pages must have stayed calm at the end of a test."""
    opened = Console(browser, own_service)
    yield opened
    opened.assert_calm()


@pytest.fixture
def page(console):
    """A page of a signed-in user."""
    context = console.context()
    yield context.new_page()
    context.close()
