"""A page that a job stored as an object, opened in the browser in which the owner is signed in to the console."""

import pytest
from boto3_clients import Clients, unique
from program_jobs import BUCKET

pytest_plugins = ["console_fixtures"]
pytestmark = [pytest.mark.clients, pytest.mark.timeout(300), pytest.mark.xdist_group("console-stacks")]

ASK = "fetch('/clary/v1/session', {credentials: 'include'}).then(answer => answer.text())"
PAGE = f"<script>{ASK}.then(text => document.title = 'read ' + text, error => document.title = 'refused')</script>"


@pytest.fixture(scope="module")
def own_service(service):
    """The shared service; these tests have no special settings."""
    return service


def title_of(page, url, *, is_sandboxed):
    """Open a stored page in a context of the same user, with or without the sandbox of its answer; return its title."""
    context = page.context.browser.new_context(storage_state=page.context.storage_state())
    stored = context.new_page()

    def without_sandbox(route):
        answer = route.fetch()
        headers = {name: value for name, value in answer.headers.items() if name != "content-security-policy"}
        route.fulfill(response=answer, headers=headers)

    if not is_sandboxed:
        stored.route(url, without_sandbox)
    stored.goto(url)
    stored.wait_for_function("document.title !== ''")
    title = stored.title()
    context.close()
    return title


# Browsers take the last type of a list, also of a list behind a parameter.
@pytest.mark.parametrize("content_type", ["text/html", "application/pdf;x=y,text/html"])
def test_a_stored_page_reads_nothing_with_the_owner_s_session(page, console, service, content_type):
    aws, key = Clients(service), f"{unique('stored-page')}/report.html"
    aws.s3.put_object(Bucket=BUCKET, Key=key, Body=PAGE.encode(), ContentType=content_type)
    url = aws.s3.generate_presigned_url("get_object", Params={"Bucket": BUCKET, "Key": key})
    assert url.startswith(f"{console.url}/"), "the stored page and the console have one address"
    page.goto(f"{console.url}/console/")
    assert "csrf" in title_of(page, url, is_sandboxed=False), "the sandbox is all that protects the session"
    assert title_of(page, url, is_sandboxed=True) == "refused"
