"""Lets commands that wait for a job outlast a restart of the service.

Where: `wait`, `stop --wait`, `logs --follow`, `tuning --follow`, `delete --stop`, `profile` and `rehearse`. While the
service does not answer, or answers 502, 503 or 504, the request is repeated every second. Another 5xx status is more
often a defect than a restart: the request is repeated three times, then the service's own error is raised. Before every
try, also of requests that are made once, the service is looked for as it runs by then (`Connection.again`): the keys go
to no other program that listens at its former port. `top` draws the error instead, and asks again until the user
leaves.
"""

from __future__ import annotations

import http.client
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from clary.base.errors import ClaryError, WireError
from clary.cli.connection import GATEWAY_STATUSES, Connection
from clary.cli.no_answer import NoAnswer

PATIENCE_S = 120.0  # a command without a --timeout of its own waits this long for the service, each time it is away
RETRY_S = 1.0
MAX_DEFECTS = 3  # repetitions of a request after 5xx answers that name no passing trouble
CLOCK_SLACK_S = 0.5  # times in answers are rounded, and clocks are corrected

Answer = TypeVar("Answer")


class PatientConnection:
    """A connection that repeats requests while the service does not answer.

    Args:
        service: connection to the service.
        deadline_s: monotonic time until which requests are repeated; None: each for `PATIENCE_S`.
    """

    def __init__(self, service: Connection, *, deadline_s: float | None = None) -> None:
        self.service = service
        self._deadline_s = deadline_s

    def ask(self, request: Callable[[Connection], Answer]) -> Answer:
        """Return the answer to a request that may be carried out several times.

        Raises: NoAnswer if the service stays away; WireError if it repeats another 5xx status; other errors of the
            request at once.
        """
        away_since_s: float | None = None
        limit_s = 0.0
        num_defects = 0
        while True:
            try:
                answer = self.once(request)
            except ClaryError as error:
                if not (is_away(error) or is_defect(error)):
                    raise
                now_s = time.monotonic()
                plan = "waits for it"
                if is_defect(error):
                    num_defects += 1
                    plan = f"repeats its request, {MAX_DEFECTS} times"
                why = error.message
                if isinstance(error, WireError):
                    why = f"the service {'failed' if is_defect(error) else 'cannot answer now'} ({why})"
                if away_since_s is None:
                    away_since_s = now_s
                    limit_s = now_s + PATIENCE_S if self._deadline_s is None else self._deadline_s
                    if now_s < limit_s:
                        _say(f"{why}; this command {plan}, at most {limit_s - now_s:.0f} s")
                if is_defect(error) and (num_defects > MAX_DEFECTS or now_s >= limit_s):
                    raise
                if now_s >= limit_s:
                    raise NoAnswer(
                        f"{why}; this command has waited {now_s - away_since_s:.0f} s for it and ends: repeat it when "
                        "the service answers again",
                        is_sent=not isinstance(error, NoAnswer) or error.is_sent,
                    ) from error
                time.sleep(max(0.0, min(RETRY_S, limit_s - now_s)))
            else:
                if away_since_s is not None:
                    _say(f"the service answers again, after {time.monotonic() - away_since_s:.0f} s")
                return answer

    def once(self, request: Callable[[Connection], Answer]) -> Answer:
        """Return the answer to a request that is made once, to the service as it runs now.

        Raises: NoAnswer if none runs or answers; other errors of the request.
        """
        self.service = self.service.again()
        return request(self.service)

    def change(self, operation: str, parameters: Mapping[str, Any], *, done_code: str) -> None:
        """Call an operation of the SageMaker API that succeeds only once, such as the deletion of a job.

        Args:
            operation: name of the operation.
            parameters: members of its request.
            done_code: code of the error that says that it was done before; after a lost answer this is a success. A
                503 is no lost answer: a service that is busy or shutting down did nothing.
        Raises: NoAnswer if the service stays away; WireError if it refuses.
        """
        is_lost = False  # whether an earlier try may have been carried out

        def request(service: Connection) -> None:
            nonlocal is_lost
            try:
                service.call(operation, parameters)
            except WireError as error:
                if is_lost and error.code == done_code:
                    return
                is_lost = is_lost or (may_be_done(error) and error.http_status != http.client.SERVICE_UNAVAILABLE)
                raise
            except NoAnswer as error:
                is_lost = is_lost or error.is_sent
                raise

        try:
            self.ask(request)
        except NoAnswer as error:
            error.is_sent = is_lost
            raise

    def call(self, operation: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Call an operation once, as `Connection.call`."""
        return self.once(lambda service: service.call(operation, parameters))

    def post_job_page(self, job: str, page: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Post to a page of a job once, as `Connection.post_job_page`.

        Args: as there.
        """
        return self.once(lambda service: service.post_job_page(job, page, body))

    def get(self, path: str, query: Mapping[str, str | int] | None = None) -> dict[str, Any]:
        """Read a page as `Connection.get`, again while the service does not answer."""
        return self.ask(lambda service: service.get(path, query))

    def job_page(self, job: str, page: str = "", query: Mapping[str, str | int] | None = None) -> dict[str, Any]:
        """Read a page of a job as `Connection.job_page`, again while the service does not answer.

        Args:
            job: name of the job.
            page: path below the job's own page; empty for the job's own page.
            query: parameters of the page.
        """
        return self.ask(lambda service: service.job_page(job, page, query))


class Creation:
    """The creation of one training job, requested again until an answer comes.

    If a name is in use after a lost answer, the job of that name may be ours or somebody else's: its age decides. It is
    compared by the service's clock, because this machine's may differ.

    Args:
        request: CreateTrainingJob in AWS spelling.
    """

    def __init__(self, request: Mapping[str, Any]) -> None:
        self._request = request
        self._began_s = 0.0  # monotonic time of the first try
        self.is_unsure = False  # whether a try may have created the job, and no answer has said so

    def send(self, connection: PatientConnection) -> None:
        """Create the job. Raises: NoAnswer if the service stays away; WireError if it refuses."""
        self._began_s = time.monotonic()
        connection.ask(self._try)
        self.is_unsure = False

    def is_ours(self, service: Connection) -> bool:
        """Whether the job of this name was created since the first try. Raises: ClaryError."""
        try:
            job = service.call("DescribeTrainingJob", {"TrainingJobName": self._request["TrainingJobName"]})
        except WireError as error:
            if error.code != "NotFound":
                raise
            return False
        age_s = float(service.get("health")["now_s"]) - float(job["CreationTime"])
        return age_s <= time.monotonic() - self._began_s + CLOCK_SLACK_S

    def _try(self, service: Connection) -> None:
        try:
            service.call("CreateTrainingJob", self._request)
        except ClaryError as error:
            if self.is_unsure and isinstance(error, WireError) and error.code == "ResourceInUse":
                if self.is_ours(service):
                    return
                self.is_unsure = False
            # A 503 too: the service may run out of disk after it has stored the job.
            self.is_unsure = self.is_unsure or may_be_done(error)
            raise


def may_be_done(error: ClaryError) -> bool:
    """Whether a request that ended with this error may have been carried out."""
    if isinstance(error, WireError):
        return error.http_status >= http.client.INTERNAL_SERVER_ERROR
    return isinstance(error, NoAnswer) and error.is_sent


def is_away(error: ClaryError) -> bool:
    """Whether the service can be expected to answer the same request later."""
    return isinstance(error, NoAnswer) or (isinstance(error, WireError) and error.http_status in GATEWAY_STATUSES)


def is_defect(error: ClaryError) -> bool:
    """Whether the service failed at the request, for no reason that is known to pass."""
    return (
        isinstance(error, WireError)
        and error.http_status >= http.client.INTERNAL_SERVER_ERROR
        and error.http_status not in GATEWAY_STATUSES
    )


def _say(sentence: str) -> None:
    print(f"clary: {sentence}", file=sys.stderr, flush=True)
