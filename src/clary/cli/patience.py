"""Lets commands that wait for a job outlast a restart of the service.

Where: `wait`, `stop --wait`, `logs --follow`, `tuning --follow`, `delete --stop`, `profile` and `rehearse`. While the
service does not answer, or answers with a 5xx status, the request is repeated: every second, to the service as it runs
by then. The keys go to no other program that listens at its former port (`Connection.again`). `top` draws the error
instead, and asks again until the user leaves.
"""

from __future__ import annotations

import http.client
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from clary.base.errors import ClaryError, WireError
from clary.cli.connection import Connection
from clary.cli.no_answer import NoAnswer

PATIENCE_S = 120.0  # a command without a --timeout of its own waits this long for the service, each time it is away
RETRY_S = 1.0

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

        Raises: NoAnswer if the service stays away; other errors of the request at once.
        """
        away_since_s: float | None = None
        limit_s = 0.0
        while True:
            try:
                if away_since_s is not None:
                    self.service = self.service.again()
                answer = request(self.service)
            except ClaryError as error:
                if not _is_away(error):
                    raise
                now_s = time.monotonic()
                why = error.message
                if isinstance(error, WireError):
                    why = f"the service cannot answer now ({why})"
                if away_since_s is None:
                    away_since_s = now_s
                    limit_s = now_s + PATIENCE_S if self._deadline_s is None else self._deadline_s
                    if now_s < limit_s:
                        _say(f"{why}; this command waits for it, at most {limit_s - now_s:.0f} s")
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

    def change(self, operation: str, parameters: Mapping[str, Any], *, done_code: str) -> None:
        """Call an operation of the SageMaker API that succeeds only once, such as the creation of a job.

        Args:
            operation: name of the operation.
            parameters: members of its request.
            done_code: code of the error that says that it was done before; after a lost answer this is a success.
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
                is_lost = is_lost or _is_away(error)
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
        return self.service.call(operation, parameters)

    def post_job_page(self, job: str, page: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Post to a page of a job once, as `Connection.post_job_page`.

        Args: as there.
        """
        return self.service.post_job_page(job, page, body)

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


def _is_away(error: ClaryError) -> bool:
    if isinstance(error, WireError):
        return error.http_status >= http.client.INTERNAL_SERVER_ERROR
    return isinstance(error, NoAnswer)


def _say(sentence: str) -> None:
    print(f"clary: {sentence}", file=sys.stderr, flush=True)
