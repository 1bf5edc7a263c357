"""Connects commands to the service: to the AWS API with the owner's key, to Clary's pages with the admin token."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import ssl
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from clary.base.errors import ClaryError, Fault, WireError
from clary.cli.contexts import (
    CA_VARIABLE,
    URL_VARIABLE,
    RemoteService,
    chosen_service,
    context_folder,
    service_settings,
)
from clary.cli.no_answer import NoAnswer
from clary.contract.sigv4 import payload_hash, sign
from clary.control.settings import Settings, load_settings
from clary.control.state_folder import RootSecrets, ServiceRecord, StateFolder

REQUEST_TIMEOUT_S = 30.0
CA_OF_OPENSSL = "SSL_CERT_FILE"
# Of passing troubles: the same request may be answered later.
GATEWAY_STATUSES = (http.client.BAD_GATEWAY, http.client.SERVICE_UNAVAILABLE, http.client.GATEWAY_TIMEOUT)
_SHOWN_BYTES = 120  # of an answer that is not JSON


@dataclass(frozen=True)
class Connection:
    """A service's address with the keys for it."""

    settings: Settings
    folder: StateFolder
    record: ServiceRecord
    secrets: RootSecrets
    context: str = ""  # name of a service elsewhere; empty: this machine's service
    ca_file: str = ""  # certificate of the service's authority; empty: this machine trusts it already

    def call(self, operation: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Call an operation of the SageMaker API.

        Raises: WireError with the service's code and message; `NotFound` for a job that does not exist.
        """
        body = json.dumps(parameters).encode()
        headers = {
            "host": urlsplit(self.record.url).netloc,
            "content-type": "application/x-amz-json-1.1",
            "x-amz-target": f"SageMaker.{operation}",
            # AWS clients send it, too: without it, two equal calls within a second would have the same signature, like
            # a replay.
            "amz-sdk-invocation-id": str(uuid.uuid4()),
        }
        signed = sign(
            "POST",
            "/",
            "",
            headers,
            payload_hash(body),
            credentials=self.secrets.credentials,
            region=self.record.region,
            service="sagemaker",
            now=datetime.now(UTC),
        )
        status, answer = self._request("POST", "/", {**headers, **signed}, body)
        if status == http.client.OK:
            return answer
        code, message = answer.get("__type", str(status)), answer.get("message", "no message")
        if message == "Requested resource not found.":
            raise WireError("NotFound", f"there is no training job {parameters.get('TrainingJobName')!r}")
        raise WireError(code, f"{code}: {message}", http_status=status)

    def get(self, path: str, query: Mapping[str, str | int] | None = None) -> dict[str, Any]:
        """Read one of the service's own pages, below /clary/v1.

        Raises: WireError; `NotFound` for a job that does not exist.
        """
        target = f"/clary/v1/{path}"
        if query:
            target += "?" + urlencode(query)
        return self._own_page("GET", target, None)

    def post_job_page(self, job: str, page: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Post to a page of a job; raises as `get`.

        Args:
            job: name of the job.
            page: path below the job's own page, for example `dump`.
            body: sent as JSON.
        """
        return self.post(f"jobs/{quote(job, safe='')}/{page}", body)

    def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Send to one of the service's own pages, below /clary/v1; raises as `get`."""
        return self._own_page("POST", f"/clary/v1/{path}", json.dumps(body).encode())

    def _own_page(self, method: str, target: str, body: bytes | None) -> dict[str, Any]:
        headers = {"authorization": f"Bearer {self.secrets.admin_token}"}
        status, answer = self._request(method, target, headers, body)
        if status == http.client.NOT_FOUND:
            raise WireError("NotFound", answer.get("message", f"nothing at {target}"), http_status=status)
        if status != http.client.OK:
            raise WireError(answer.get("__type", str(status)), answer.get("message", "no message"), http_status=status)
        return answer

    def job_page(self, job: str, page: str = "", query: Mapping[str, str | int] | None = None) -> dict[str, Any]:
        """Read a page of a job, such as its `plan` or its `logs`; raises as `get`.

        Args:
            job: name of the job.
            page: path below the job's own page; empty for the job's own page.
            query: parameters of the page.
        """
        return self.get("/".join(("jobs", quote(job, safe=""), *([page] if page else []))), query)

    @contextlib.contextmanager
    def trusted(self) -> Iterator[None]:
        """Make clients in this process that use OpenSSL's default certificates trust the service's certificate."""
        before = os.environ.get(CA_OF_OPENSSL)
        if self.ca_file:
            os.environ[CA_OF_OPENSSL] = self.ca_file
        try:
            yield
        finally:
            if self.ca_file and before is None:
                del os.environ[CA_OF_OPENSSL]
            elif self.ca_file and before is not None:
                os.environ[CA_OF_OPENSSL] = before

    def again(self) -> Connection:
        """Return the connection to this service as it runs now: after a restart, address and keys may be others.

        Raises: NoAnswer if no service runs here.
        """
        if self.context:
            return self
        running = find_running(self.settings)
        if running is None:
            raise _none_runs(self.settings)
        return running

    def is_healthy(self) -> bool:
        """Whether the service answers a health request."""
        try:
            return bool(self.get("health").get("status") == "ok")
        except ClaryError:
            return False

    def _open(self) -> http.client.HTTPConnection:
        address = urlsplit(self.record.url)
        host, port = address.hostname or "", address.port
        if address.scheme != "https":
            return http.client.HTTPConnection(host, port, timeout=REQUEST_TIMEOUT_S)
        trust = ssl.create_default_context(cafile=self.ca_file or None)
        return http.client.HTTPSConnection(host, port, timeout=REQUEST_TIMEOUT_S, context=trust)

    def _request(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes | None
    ) -> tuple[int, dict[str, Any]]:
        """Return status and answer.

        Raises: NoAnswer; WireError for another status without JSON, whose sender is no service of Clary; ClaryError
            for a certificate that is not to be trusted.
        """
        try:
            connection = self._open()
        except OSError as error:
            raise ClaryError(f"{self.ca_file}: holds no certificates: {error}", fault=Fault.USER) from error
        is_sent = False
        try:
            connection.connect()
            is_sent = True
            connection.request(method, target, body=body, headers=dict(headers))
            response = connection.getresponse()
            text = response.read()
        except ssl.SSLCertVerificationError as error:  # waiting does not help
            raise ClaryError(
                f"the service at {self.record.url} is not to be trusted ({error}); give its authority's certificate: "
                f"clary context add --ca-file, or {CA_VARIABLE} with {URL_VARIABLE}",
                fault=Fault.INFRASTRUCTURE,
            ) from error
        except (OSError, http.client.HTTPException) as error:
            raise self._no_answer(str(error), is_sent=is_sent) from error
        finally:
            connection.close()
        answer = _json_object(text)
        if answer is None:
            raise self._not_json(response.status, text)
        return response.status, answer

    def _no_answer(self, why: str, *, is_sent: bool) -> NoAnswer:
        advice = f"it is what {self.context} names" if self.context else "start it with: clary up"
        return NoAnswer(f"the service at {self.record.url} does not answer ({why}); {advice}", is_sent=is_sent)

    def _not_json(self, status: int, text: bytes) -> ClaryError:
        """Return the error for an answer that is not a JSON object: of a gateway, or of another program at this URL."""
        said = " ".join(text[:_SHOWN_BYTES].decode(errors="replace").split())
        if status in GATEWAY_STATUSES:  # a gateway answers for a service that does not, or the service is full
            return self._no_answer(f"HTTP {status}: {said}", is_sent=True)
        advice = f"check the address that {self.context} names" if self.context else "start the service with: clary up"
        return WireError(
            str(status),
            f"{self.record.url} answers with HTTP {status} and without JSON, unlike a service of Clary ({said}); "
            f"{advice}",
            http_status=status,
        )


def _json_object(text: bytes) -> dict[str, Any] | None:
    try:
        answer = json.loads(text or b"{}")
    except ValueError:
        return None
    return answer if isinstance(answer, dict) else None


def _elsewhere(settings: Settings, name: str, service: RemoteService) -> Connection:
    record = ServiceRecord(
        pid=0,
        process_started="",
        url=service.url.rstrip("/"),
        tls_url="",
        proxy_url="",
        region=service.region,
        version="",
    )
    secrets = RootSecrets(
        access_key_id=service.access_key_id,
        secret_access_key=service.secret_access_key,
        admin_token=service.admin_token,
        master_key="",
    )
    folder = StateFolder(context_folder(settings, name))
    return Connection(service_settings(settings, service), folder, record, secrets, name, service.ca_file)


def find_running(settings: Settings) -> Connection | None:
    """Return the service that runs for the state folder, or None."""
    folder = StateFolder(settings.home_folder)
    record = folder.read_service_record()
    # A service that was killed leaves its record, and another program, which must not get the keys, may listen on its
    # port now.
    if record is None or not record.process.is_alive():
        return None
    return Connection(settings, folder, record, folder.read_secrets())


def connect() -> Connection:
    """Find the chosen service (see `contexts`), else the service of the state folder.

    Raises: NoAnswer saying how to start a service if no service runs here; ClaryError saying why the choice is wrong.
    """
    settings = load_settings()
    chosen = chosen_service(settings)
    if chosen is not None:
        return _elsewhere(settings, *chosen)
    running = find_running(settings)
    if running is None:
        raise _none_runs(settings)
    return running


def _none_runs(settings: Settings) -> NoAnswer:
    return NoAnswer(f"no service runs for {settings.home_folder}; start one with: clary up")
