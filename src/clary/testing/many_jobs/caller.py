"""boto3 clients that time and count every answer and check its shape against AWS's model."""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from typing import Any

import boto3
from botocore import xform_name
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from clary.testing.many_jobs.records import ClientTask

THROTTLES = frozenset({"ThrottlingException", "Throttling", "TooManyRequestsException", "RequestLimitExceeded"})
# Error codes outside of the operations' models: every AWS service may return them.
GENERAL_CODES = frozenset({"ValidationException", *THROTTLES})
UNANSWERED = "unanswered"
HTTP_OK, HTTP_REFUSED = 200, range(400, 500)


class Caller:
    """Calls SageMaker and the log service; two threads may share one caller."""

    def __init__(self, task: ClientTask) -> None:
        self._clients = {name: _client(name, task) for name in ("sagemaker", "logs")}
        for name, client in self._clients.items():
            client.meta.events.register(f"response-received.{name}", self._see_response)
        self._lock = threading.Lock()
        self.latencies_s: dict[str, list[float]] = defaultdict(list)
        self.refusals: Counter[str] = Counter()
        self.num_retries = 0  # retries by boto3
        self.num_throttled = 0  # throttling answers, which boto3 retries
        self.wrongs: list[str] = []

    def call(self, service: str, operation: str, **parameters: Any) -> tuple[str, dict[str, Any]]:
        """Return (error code, answer); the code is empty for a successful call."""
        client = self._clients[service]
        started_s = time.monotonic()
        code, answer = "", {}
        try:
            answer = getattr(client, xform_name(operation))(**parameters)
        except ClientError as error:
            code, answer = error.response["Error"]["Code"], dict(error.response)
        except BotoCoreError as error:
            code, answer = UNANSWERED, {"Error": {"Message": f"{type(error).__name__}: {error}"}}
        elapsed_s = time.monotonic() - started_s
        known = {shape.name for shape in client.meta.service_model.operation_model(operation).error_shapes}
        with self._lock:
            self.latencies_s[f"{operation} refused" if code else operation].append(elapsed_s)
            if code:
                self.refusals[f"{operation} {code}"] += 1
            self.num_retries += answer.get("ResponseMetadata", {}).get("RetryAttempts", 0)
            why = _misshapen(code, answer, known=known | GENERAL_CODES)
            if why:
                self.wrongs.append(f"{operation} {parameters}: {why}")
        return code, answer

    def _see_response(self, *, parsed_response: dict[str, Any] | None, **_: Any) -> None:
        code = (parsed_response or {}).get("Error", {}).get("Code")
        with self._lock:
            self.num_throttled += code in THROTTLES


def _misshapen(code: str, answer: dict[str, Any], *, known: frozenset[str] | set[str]) -> str:
    """Return the difference between an answer and AWS's shape, or an empty string."""
    metadata = answer.get("ResponseMetadata", {})
    status = metadata.get("HTTPStatusCode", 0)
    if code == UNANSWERED:
        return f"no answer that boto3 understands: {answer['Error']['Message']}"
    if not metadata.get("RequestId"):
        return f"an answer without a request id: {answer}"
    if not code:
        return "" if status == HTTP_OK else f"an answer with status {status}"
    if status not in HTTP_REFUSED or code not in known or not answer["Error"].get("Message"):
        return f"an error that is not AWS's: status {status}, {answer['Error']}, known are {sorted(known)}"
    return ""


def _client(service: str, task: ClientTask) -> Any:
    return boto3.client(
        service,
        endpoint_url=task.endpoint_url,
        region_name=task.region,
        aws_access_key_id=task.access_key_id,
        aws_secret_access_key=task.secret_access_key,
        config=Config(retries={"mode": "standard"}, connect_timeout=5, read_timeout=60),
    )
