"""Clients of a service that may be down at any moment, or may have restarted on another port."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from clary.base.errors import ClaryError
from clary.control.state_folder import RootSecrets, StateFolder

ANSWER_DEADLINE_S = 60.0  # limit for an answer; no fault prevents answers for so long
PAGE_TIMEOUT_S = 30.0
RETRY_S = 0.1
REGION = "us-west-2"
RETRIED_CODES = ("ThrottlingException", "SlowDown")  # AWS's clients retry them, too

T = TypeVar("T")


class NoAnswer(Exception):
    """The service did not answer in time; no fault prevents answers for so long."""


class FaultClients:
    """boto3 clients, one set per thread.

    Args:
        home: state folder of the service.
        revive: called after each failed attempt.
    """

    def __init__(self, home: Path, revive: Callable[[], None]) -> None:
        self._home = home
        self._revive = revive
        self._local = threading.local()
        self._secrets: RootSecrets | None = None
        self._record: Mapping[str, Any] = {}

    def url(self) -> str:
        """Return the service's present URL, or its last URL while it is down."""
        with suppress(OSError, ValueError):
            self._record = json.loads((self._home / "run" / "service.json").read_text())
        return str(self._record["url"])

    def client(self, name: str) -> Any:
        """Return this thread's boto3 client of the service at its present URL."""
        clients: dict[str, Any] = self._local.__dict__.setdefault("clients", {})
        url = self.url()
        if clients.get("url") != url:
            clients.clear()
            clients["url"] = url
        if name not in clients:
            secrets = self._keys()
            clients[name] = boto3.session.Session().client(
                name,
                endpoint_url=url,
                region_name=REGION,
                aws_access_key_id=secrets.access_key_id,
                aws_secret_access_key=secrets.secret_access_key,
                config=Config(retries={"max_attempts": 1}, connect_timeout=5, read_timeout=30),
            )
        return clients[name]

    def own_page(self, page: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Send a request to one of the service's own pages below /clary/v1, and return the answer.

        Raises: ClaryError for a refusal; OSError while the service is down.
        """
        place = urlsplit(self.url())
        connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=PAGE_TIMEOUT_S)
        try:
            data = None if body is None else json.dumps(body)
            headers = {"authorization": f"Bearer {self._keys().admin_token}"}
            connection.request("GET" if body is None else "POST", f"/clary/v1/{page}", body=data, headers=headers)
            response = connection.getresponse()
            answer: dict[str, Any] = json.loads(response.read() or b"{}")
        except (http.client.HTTPException, ValueError) as error:
            raise OSError(f"the answer of {page} is invalid: {error}") from error
        finally:
            connection.close()
        if response.status != http.client.OK:
            raise ClaryError(f"{page}: {response.status} {answer}")
        return answer

    def _keys(self) -> RootSecrets:
        """Return the owner's keys, read once: their file may be deleted at any moment."""
        if self._secrets is None:
            self._secrets = StateFolder(self._home).read_secrets()
        return self._secrets

    def ask(self, call: Callable[[], T], *, deadline_s: float = ANSWER_DEADLINE_S) -> T:
        """Repeat a call until the service answers; a refusal (4xx) is an answer, except RETRIED_CODES.

        Raises: ClientError; NoAnswer.
        """
        deadline = time.monotonic() + deadline_s
        while True:
            try:
                return call()
            except ClientError as error:
                status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 500)
                is_busy = status >= 500 or error.response["Error"]["Code"] in RETRIED_CODES
                if not is_busy or time.monotonic() > deadline:
                    raise
                trouble: Exception = error
            except (BotoCoreError, OSError, ClaryError) as error:
                trouble = error
            if time.monotonic() > deadline:
                raise NoAnswer(f"no answer within {deadline_s:g} s; the last error was {trouble}") from trouble
            time.sleep(RETRY_S)
            self._revive()
