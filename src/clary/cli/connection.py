"""How commands reach the service: the AWS API with the owner's key, its own pages with its admin token."""

from __future__ import annotations

import http.client
import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from clary.contract.errors import ClaryError, Fault, WireError
from clary.contract.sigv4 import payload_hash, sign
from clary.control.settings import Settings, load_settings
from clary.control.state_folder import RootSecrets, ServiceRecord, StateFolder

REQUEST_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Connection:
    """An address with keys."""

    settings: Settings
    folder: StateFolder
    record: ServiceRecord
    secrets: RootSecrets

    def call(self, operation: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Call an operation of the SageMaker API.

        Raises: WireError with the service's code and message; `NotFound` for a job that does not exist.
        """
        body = json.dumps(parameters).encode()
        headers = {
            "host": urlsplit(self.record.url).netloc,
            "content-type": "application/x-amz-json-1.1",
            "x-amz-target": f"SageMaker.{operation}",
            # As AWS clients do: two equal calls within a second would have one signature, and one is a replay.
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
        """Have the service do something to a job; raises as `get`."""
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
        """Read a page of a job: all that is known of it, its `plan` or its `logs`; raises as `get`."""
        return self.get("/".join(("jobs", quote(job, safe=""), *([page] if page else []))), query)

    def is_healthy(self) -> bool:
        """Whether the service answers."""
        try:
            return bool(self.get("health").get("status") == "ok")
        except ClaryError:
            return False

    def _request(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes | None
    ) -> tuple[int, dict[str, Any]]:
        address = urlsplit(self.record.url)
        connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=REQUEST_TIMEOUT_S)
        try:
            connection.request(method, target, body=body, headers=dict(headers))
            response = connection.getresponse()
            text = response.read()
            return response.status, json.loads(text or b"{}")
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise ClaryError(
                f"the service at {self.record.url} does not answer ({error}); start it with: clary up",
                fault=Fault.INFRASTRUCTURE,
            ) from error
        finally:
            connection.close()


def find_running(settings: Settings) -> Connection | None:
    """Return the service that runs for the state folder, or None."""
    folder = StateFolder(settings.home_folder)
    record = folder.read_service_record()
    # A service that was killed leaves its record, and anyone may listen on its port now: nobody else gets the keys.
    if record is None or not record.process.is_alive():
        return None
    return Connection(settings, folder, record, folder.read_secrets())


def connect() -> Connection:
    """Find the service of the state folder.

    Raises: ClaryError saying how to start it when none runs here.
    """
    settings = load_settings()
    running = find_running(settings)
    if running is None:
        raise ClaryError(
            f"no service runs for {settings.home_folder}; start one with: clary up", fault=Fault.INFRASTRUCTURE
        )
    return running
