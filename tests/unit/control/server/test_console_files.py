"""The console's files: the right type, safe headers, only files of the folder; the requests that reach them."""

import os
from types import SimpleNamespace

import pytest

from clary.control.server.console_files import FOLDER, MEDIA_TYPES, SAFETY_HEADERS, ConsoleFiles
from clary.control.server.edge import matching
from clary.control.wire.messages import HttpRequest


@pytest.fixture
def files(tmp_path):
    folder = tmp_path / "console"
    (folder / "styles").mkdir(parents=True)
    (folder / "index.html").write_text("<!doctype html>index")
    (folder / "app.js").write_text("let a = 1;")
    (folder / "styles" / "base.css").write_text("body {}")
    (tmp_path / "secret.js").write_text("secret")
    (tmp_path / "secret.html").write_text("secret")
    os.symlink(tmp_path / "secret.js", folder / "linked.js")
    os.symlink(folder / "ring.js", folder / "ring.js")
    return ConsoleFiles(folder)


async def get(files, path, *headers, method="GET"):
    return await files.handle(HttpRequest(method, path, "", list(headers)))


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/console",
        "/console/",
        "/console/jobs/a-1",
        "/console/jobs/a-1/logs",
        "/console/hosts",
        "/console/index.html",
        "/console/compare",
        "/console/jobs/<script>",
        "/console/jobs/%3Cimg%20src=x%3E",
    ],
)
async def test_every_address_of_a_page_returns_the_index(files, path):
    answer = await get(files, path)
    assert (answer.status, answer.body) == (200, b"<!doctype html>index")
    assert answer.header("content-type") == "text/html; charset=utf-8"


async def test_files_have_their_type_and_every_response_has_the_safety_headers(files):
    script, style = await get(files, "/console/app.js"), await get(files, "/console/styles/base.css")
    assert (script.body, script.header("content-type")) == (b"let a = 1;", "text/javascript; charset=utf-8")
    assert (style.body, style.header("content-type")) == (b"body {}", "text/css; charset=utf-8")
    for answer in (script, style, await get(files, "/"), await get(files, "/console/x.js")):
        assert set(SAFETY_HEADERS) <= set(answer.headers)
    policy = script.header("content-security-policy")
    assert "default-src 'self'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy


@pytest.mark.parametrize(
    "path",
    [
        "/console/../secret.js",
        "/console/%2e%2e/secret.js",
        "/console/%2e%2e%2fsecret.html",
        "/console/..%2f..%2f..%2f..%2fetc/x.js",
        "/console/styles/../../secret.js",
        "/console//etc/secret.js",
        "/console/linked.js",
        "/console/ring.js",
        "/console/nothing.js",
        "/console/a%00.js",
        "/console/styles.css/",
        "/console/" + "x" * 5000 + ".js",
        "/console/%ff.js",
    ],
)
async def test_no_file_outside_the_folder_is_served(files, path):
    answer = await get(files, path)
    assert b"secret" not in answer.body
    assert answer.status in (200, 404)
    assert answer.body in (b"<!doctype html>index", b"the console has no such file")


async def test_an_unchanged_file_is_not_sent_again_and_a_changed_one_is(files, tmp_path):
    first = await get(files, "/console/app.js")
    again = await get(files, "/console/app.js", ("If-None-Match", first.header("etag")))
    assert (again.status, again.body, again.header("etag")) == (304, b"", first.header("etag"))
    (tmp_path / "console" / "app.js").write_text("let a = 22;")
    changed = await get(files, "/console/app.js", ("If-None-Match", first.header("etag")))
    assert (changed.status, changed.body) == (200, b"let a = 22;")


@pytest.mark.parametrize("method", ["POST", "DELETE", "OPTIONS", "PUT"])
async def test_files_accept_only_read_methods(files, method):
    assert (await get(files, "/", method=method)).status == 405


def test_every_file_of_the_package_has_a_known_type():
    names = [path.name for path in FOLDER.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert "index.html" in names
    assert [name for name in names if os.path.splitext(name)[1] not in MEDIA_TYPES] == []


@pytest.mark.parametrize(
    ("method", "path", "headers", "is_console"),
    [
        ("GET", "/", {"Accept": "text/html,application/xhtml+xml"}, True),
        ("HEAD", "/", {"Accept": "text/html"}, True),
        ("GET", "/?x=1", {"Accept": "text/html"}, True),
        ("GET", "/console/jobs/a", {}, True),
        ("GET", "/console", {}, True),
        ("GET", "/", {}, False),  # ListBuckets without a signature, which S3 refuses with its own error
        ("GET", "/", {"Accept": "*/*"}, False),
        ("POST", "/", {"Accept": "text/html"}, False),
        ("GET", "/?Action=GetCallerIdentity&Version=2011-06-15", {"Accept": "text/html"}, False),
        ("GET", "/", {"Accept": "text/html", "Authorization": "AWS4-HMAC-SHA256 x"}, False),
        ("GET", "/console/key", {"Authorization": "AWS4-HMAC-SHA256 x"}, False),
        ("PUT", "/console/key", {}, False),
        ("GET", "/consoles/key", {}, False),
        ("GET", "/bucket/console", {"Accept": "text/html"}, False),
    ],
)
def test_browsers_reach_the_console_and_aws_clients_do_not(method, path, headers, is_console):
    assert matching.is_console(SimpleNamespace(method=method, raw_path=path, headers=headers)) is is_console
