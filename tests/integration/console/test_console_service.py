"""The server side of the console in a real service: sign-in, access by cookie, jobs with hostile texts."""

import http.client
import json
import re
import socket
import ssl
import time
from urllib.parse import quote, urlencode, urlsplit

import pytest
from boto3_clients import Clients, job_request, unique, wait
from running_service import SETTINGS, start_service

from clary.control.server.edge.guesses import MAX_WRONG

pytestmark = [pytest.mark.timeout(300), pytest.mark.clients, pytest.mark.xdist_group("console-service")]

HOSTILE = "<img src=x onerror=alert(1)></script>"
PROGRAM = f"for i in $(seq 300); do echo line $i of the flood; done; echo loss=0.5; echo loss=0.25; echo '{HOSTILE}'"
PATIENCE_S = 60
CHANGES = ("POST", "DELETE", "PUT", "PATCH", "OPTIONS")


class Browser:
    """Sends requests as a browser would, with cookies and headers chosen by the test."""

    def __init__(self, service, *, is_signed_in=True):
        self.home = service.home
        self.token = json.loads((service.home / "secrets" / "root.json").read_text())["admin_token"]
        self.address = urlsplit(service.environment["AWS_ENDPOINT_URL"]).netloc
        self.cookie, self.csrf = "", ""
        self.source = None
        if is_signed_in:
            status, facts, headers = self.send("POST", "/clary/v1/session", {"token": self.token})
            assert status == 200, facts
            self.cookie = headers["Set-Cookie"].partition(";")[0]
            self.csrf = facts["csrf"]

    def send(self, method, path, body=None, *, is_page=True, **headers):
        """Return status, JSON or text, and headers."""
        own = {"Host": self.address, "Cookie": self.cookie}
        if is_page and method not in ("GET", "HEAD"):
            own |= {"Origin": f"http://{self.address}", "X-Clary-Csrf": self.csrf}
        own |= {name.replace("_", "-"): value for name, value in headers.items()}
        connection = http.client.HTTPConnection(self.address, timeout=PATIENCE_S, source_address=self.source)
        try:
            sent = None if body is None else json.dumps(body)
            connection.request(method, path, sent, {name: value for name, value in own.items() if value})
            answer = connection.getresponse()
            text = answer.read().decode()
            is_json = answer.headers["Content-Type"] == "application/json" and text
            return answer.status, json.loads(text, parse_constant=_no_constant) if is_json else text, answer.headers
        finally:
            connection.close()

    def get(self, path, **query):
        """Return the JSON of a page below /clary/v1."""
        target = f"/clary/v1/{path}" + (f"?{urlencode(query)}" if query else "")
        status, page, headers = self.send("GET", target)
        assert status == 200, page
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Cache-Control"] == "no-store"
        return page


def _no_constant(name):
    raise AssertionError(f"no browser reads {name}")


@pytest.fixture(scope="module")
def own_service(tmp_path_factory):
    """A service of this module, whose log and cookies start empty."""
    running = start_service(tmp_path_factory.mktemp("console"), SETTINGS)
    yield running
    running.clary("down")


@pytest.fixture(scope="module")
def aws(own_service):
    return Clients(own_service)


@pytest.fixture(scope="module")
def browser(own_service):
    return Browser(own_service)


@pytest.fixture(scope="module")
def done(aws):
    """An ended job that has printed hostile text, with a secret in its environment."""
    environment = {"MY_PASSWORD": "hunter22", "NOTE": HOSTILE}
    request = job_request(unique("said"), PROGRAM, Environment=environment, HyperParameters={"lr": "0.1"})
    request["AlgorithmSpecification"]["MetricDefinitions"].append({"Name": HOSTILE, "Regex": "line ([0-9]+) of"})
    aws.sagemaker.create_training_job(**request)
    described = wait(aws, request["TrainingJobName"])
    assert described["TrainingJobStatus"] == "Completed", described.get("FailureReason")
    return request["TrainingJobName"]


def test_a_token_is_exchanged_for_a_cookie_that_is_valid_until_sign_out(own_service):
    browser = Browser(own_service)
    assert browser.get("session")["csrf"] == browser.csrf
    assert browser.get("jobs")["next"] is None
    status, _, headers = browser.send("DELETE", "/clary/v1/session")
    assert (status, "Max-Age=0" in headers["Set-Cookie"]) == (200, True)
    for path in ("session", "jobs", "hosts", "spot"):
        assert browser.send("GET", f"/clary/v1/{path}")[0] == 401, path


def test_a_cookie_set_over_tls_is_marked_secure(own_service):
    address = f"localhost:{own_service.variables['CLARY_TLS_PORT']}"
    context = ssl.create_default_context(cafile=own_service.tls_environment["AWS_CA_BUNDLE"])
    connection = http.client.HTTPSConnection(address, timeout=PATIENCE_S, context=context)
    try:
        token = Browser(own_service, is_signed_in=False).token
        own = {"Origin": f"https://{address}", "Sec-Fetch-Site": "same-origin"}
        connection.request("POST", "/clary/v1/session", json.dumps({"token": token}), own)
        answer = connection.getresponse()
        assert (answer.status, answer.headers["Set-Cookie"].endswith("; Secure")) == (200, True)
        assert answer.headers["Set-Cookie"].startswith("__Host-clary_session_")
    finally:
        connection.close()


def test_the_link_of_the_command_signs_in_once_and_no_log_has_its_code(own_service):
    link = json.loads(own_service.clary("console", "--json").stdout)
    said = own_service.clary("console").stdout
    assert f"console   {link['url']}" in said
    code = re.fullmatch(rf"{re.escape(link['url'])}#code=([\w-]+)", link["sign_in_url"])[1]
    browser = Browser(own_service, is_signed_in=False)
    status, facts, headers = browser.send("POST", "/clary/v1/session", {"code": code})
    assert (status, facts["user"]) == (200, "owner")
    assert browser.send("POST", "/clary/v1/session", {"code": code})[0] == 403
    cookie = headers["Set-Cookie"].partition(";")[0].partition("=")[2]
    log = (own_service.home / "service.log").read_text()
    for secret in (code, cookie, facts["csrf"], browser.token):
        assert secret not in log


@pytest.mark.parametrize(
    "path", ["session", "jobs", "hosts", "compare?jobs=a", "jobs/x", "jobs/x/logs", "spot", "rehearsal", "nothing"]
)
def test_requests_without_a_valid_cookie_are_refused(own_service, path):
    stranger = Browser(own_service, is_signed_in=False)
    good = Browser(own_service).cookie
    forged = [good[:-1] + ("A" if good[-1] != "A" else "B"), "clary_session=", "clary_session=a.b", f"{good}; {good}"]
    for cookie in ("", *forged):
        status, page, headers = stranger.send("GET", f"/clary/v1/{path}", Cookie=cookie)
        assert (status, page["__type"]) == (401, "NotSignedIn"), cookie
        assert headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize("method", CHANGES)
def test_changes_need_the_csrf_value_and_the_services_own_origin(browser, done, method):
    path = f"/clary/v1/jobs/{done}/stop"
    ours = f"http://{browser.address}"
    refused = [
        {},
        {"Origin": ours},
        {"Origin": ours, "X_Clary_Csrf": "wrong"},
        {"X_Clary_Csrf": browser.csrf},
        {"Origin": "http://evil.example", "X_Clary_Csrf": browser.csrf},
        {"Origin": ours, "Sec_Fetch_Site": "cross-site", "X_Clary_Csrf": browser.csrf},
    ]
    for headers in refused:
        status, page, answered = browser.send(method, path, {}, is_page=False, **headers)
        assert (status, page["__type"]) == (403, "AccessDenied"), headers
        assert not [name for name in answered if name.lower().startswith("access-control")]


def test_a_page_of_another_origin_cannot_sign_in(own_service):
    stranger = Browser(own_service, is_signed_in=False)
    status, _, headers = stranger.send(
        "POST", "/clary/v1/session", {"token": stranger.token}, is_page=False, Origin="http://evil.example"
    )
    assert (status, headers["Set-Cookie"]) == (403, None)


def test_browsers_get_the_console_and_aws_clients_get_the_api_at_the_same_url(browser, aws, done):
    for path in (
        "/",
        f"/console/jobs/{done}",
        f"/console/jobs/{done}/logs",
        "/console/hosts",
        "/console/compare?jobs=a",
    ):
        status, page, headers = browser.send("GET", path, Accept="text/html,*/*")
        assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8"), path
        assert page.lower().startswith("<!doctype html>")
        assert "default-src 'self'" in headers["Content-Security-Policy"]
        assert "unsafe" not in headers["Content-Security-Policy"]
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Referrer-Policy"] == "no-referrer"
        again = browser.send("GET", path, Accept="text/html", If_None_Match=headers["ETag"])
        assert (again[0], again[1]) == (304, "")
        assert browser.send("HEAD", path, Accept="text/html")[:2] == (200, "")
    assert aws.sts.get_caller_identity()["Account"]
    assert "clary" in [bucket["Name"] for bucket in aws.s3.list_buckets()["Buckets"]]
    aws.s3.create_bucket(Bucket="console")
    aws.s3.put_object(Bucket="console", Key="jobs/x", Body=b"an object")
    assert aws.s3.get_object(Bucket="console", Key="jobs/x")["Body"].read() == b"an object"


@pytest.mark.parametrize(
    "path",
    ["/console/../people_routes.py", "/console/%2e%2e/%2e%2e/settings.py", "/console/..%2f..%2fstate_folder.html"],
)
def test_no_path_leads_out_of_the_consoles_folder(browser, path):
    status, page, headers = browser.send("GET", path)
    assert "from __future__" not in page  # every module of the service begins with this text
    assert "def " not in page
    assert status in (200, 404)
    assert headers["X-Content-Type-Options"] == "nosniff"


def test_output_of_a_job_is_returned_as_text_in_json(browser, done):
    facts = browser.get(f"jobs/{done}")
    assert {metric["name"] for metric in facts["metrics"]} == {"loss", HOSTILE}
    found = browser.get(f"jobs/{done}/log-lines", search="ONERROR")
    assert [line["text"] for line in found["lines"]] == [HOSTILE]
    curves = browser.get(f"jobs/{done}/metric-values", names="loss")["metrics"]
    assert [value for _, value, _ in curves["loss"]] == [0.5, 0.25]
    [card] = browser.get("jobs", search=done)["jobs"]
    assert (card["status"], card["num_hosts"], card["instance_type"]) == ("Completed", 1, "ml.m5.large")
    assert {metric["name"] for metric in card["metrics"]} == {"loss", HOSTILE}
    for path in (f"jobs/{done}/logs", f"jobs/{done}/series", f"jobs/{done}/health"):
        browser.get(path)


def test_pages_of_a_log_are_contiguous_in_both_directions(browser, done):
    whole = browser.get(f"jobs/{done}/log-lines", limit=1000)
    assert (whole["next"], whole["is_over"], whole["hosts"]) == (None, True, ["algo-1"])
    found, query = [], {}
    while True:
        page = browser.get(f"jobs/{done}/log-lines", search="flood", limit=70, **query)
        found += [line["text"] for line in page["lines"]]
        if page["next"] is None:
            break
        query = {"before": page["next"]}
    assert found == [f"line {number} of the flood" for number in range(300, 0, -1)]
    assert browser.get(f"jobs/{done}/log-lines", after=whole["previous"])["lines"] == []


def test_secrets_of_a_request_are_hidden_from_browsers_but_not_from_the_cli(browser, own_service, done):
    sent = browser.get(f"jobs/{done}/request")["request"]
    assert (sent["Environment"]["MY_PASSWORD"], sent["Environment"]["NOTE"]) == ("(hidden)", HOSTILE)
    assert sent["HyperParameters"] == {"lr": "0.1"}
    for page in ("", "/plan", "/request", "/health"):
        assert "hunter22" not in json.dumps(browser.get(f"jobs/{done}{page}"))
    by_token = Browser(own_service, is_signed_in=False)
    _, page, _ = by_token.send("GET", f"/clary/v1/jobs/{done}/request", Authorization=f"Bearer {by_token.token}")
    assert page["request"]["Environment"]["MY_PASSWORD"] == "hunter22"


@pytest.mark.parametrize("name", ["<script>", "a b", "..", "%00", "\u00e9", "x" * 4000, "'; DROP TABLE jobs; --"])
def test_a_hostile_job_name_gives_not_found_as_json(browser, name):
    status, page, headers = browser.send("GET", f"/clary/v1/jobs/{quote(name, safe='')}/log-lines")
    assert (status, page["__type"]) == (404, "NotFound")
    assert (headers["Content-Type"], headers["X-Content-Type-Options"]) == ("application/json", "nosniff")
    found = browser.get("compare", jobs=name)
    assert found["jobs"] == []


@pytest.mark.long(10)
def test_a_job_is_shown_with_its_host_and_stopped_only_with_the_csrf_value(browser, aws, done):
    name = unique("stopped")
    aws.sagemaker.create_training_job(**job_request(name, "echo loss=1; sleep 600", HyperParameters={"lr": "0.2"}))
    wait(aws, name, until=("Training", "Failed"))
    deadline = time.monotonic() + PATIENCE_S
    while not [host for host in browser.get("hosts")["hosts"] if host["job"] == name and host["state"] == "running"]:
        assert time.monotonic() < deadline, browser.get("hosts")
        time.sleep(0.2)
    found = browser.get("compare", jobs=f"{done},{name}")
    assert {"key": "HyperParameters.lr", "values": ["0.1", "0.2"]} in found["differences"]
    assert browser.get("jobs", status="InProgress", search=name)["total"] == 1
    path = f"/clary/v1/jobs/{name}/stop"
    assert browser.send("GET", path)[0] == 404
    assert browser.send("POST", path, {}, X_Clary_Csrf="wrong")[0] == 403
    assert aws.sagemaker.describe_training_job(TrainingJobName=name)["TrainingJobStatus"] == "InProgress"
    status, page, _ = browser.send("POST", path, {})
    assert (status, page["name"]) == (200, name)
    assert wait(aws, name)["TrainingJobStatus"] == "Stopped"
    status, page, _ = browser.send("POST", path, {})
    assert (status, "is over" in page["message"]) == (400, True)
    assert browser.get("jobs", search=name)["jobs"][0]["status"] == "Stopped"


def test_oversized_and_malformed_requests_get_an_error_response(browser):
    address = urlsplit(f"http://{browser.address}")
    for head in (
        f"GET /console/{'x' * 40_000} HTTP/1.1\r\n",
        f"GET / HTTP/1.1\r\nCookie: clary_session={'x' * 40_000}\r\n",
        "GET /clary/v1/jobs HTTP/1.1\r\n" + "".join(f"X-{number}: {'x' * 500}\r\n" for number in range(100)),
        "GET /clary/v1/jobs HTTP/1.1\r\nCookie: clary_session=\xff\xfe\r\n",
        "BREW / HTTP/1.1\r\nAccept: text/html\r\n",
    ):
        with socket.create_connection((address.hostname, address.port), timeout=PATIENCE_S) as connection:
            connection.sendall(f"{head}Host: {browser.address}\r\nConnection: close\r\n\r\n".encode("latin-1"))
            answer = connection.makefile("rb").readline().split()
        assert answer, head[:60]
        assert 400 <= int(answer[1]) < 500, (head[:60], answer)
    assert browser.get("session")["user"] == "owner"


def test_token_guesses_are_throttled_but_the_right_token_still_signs_in(own_service):
    browser = Browser(own_service)
    browser.source = ("127.0.0.2", 0)  # a separate address, so that wrong tokens of other tests are not counted
    guesses = [browser.send("POST", "/clary/v1/session", {"token": f"guess {n}"})[0] for n in range(MAX_WRONG + 2)]
    assert guesses == [403] * MAX_WRONG + [429] * 2
    assert browser.send("GET", "/clary/v1/jobs", Authorization="Bearer guess")[0] == 429
    assert browser.send("POST", "/clary/v1/session", {"token": browser.token})[0] == 200
    assert browser.get("session")["csrf"] == browser.csrf
    assert browser.send("GET", "/clary/v1/jobs", Authorization=f"Bearer {browser.token}")[0] == 200
