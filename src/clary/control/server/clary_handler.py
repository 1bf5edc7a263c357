"""Handler for the service's own pages: finds the route of a request, checks its caller, and turns errors into answers.

Where: the listener passes requests for paths below /clary/v1/ and for the metrics. `route_table` contains the routes.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable
from dataclasses import is_dataclass, replace
from http import HTTPStatus
from typing import Any

from clary.base.errors import ContractError, WireError
from clary.base.plain import from_plain, to_plain
from clary.control.jobs.training_job import TrainingJob
from clary.control.server.authorization import Authorizer
from clary.control.server.edge.gates import Admission, Refusal
from clary.control.server.edge.guesses import GuessLimiter, too_many_guesses
from clary.control.server.edge.internal_http import error_answer, finite_answer, json_answer, read_json
from clary.control.server.edge.large_bodies import LargeBodies
from clary.control.server.edge.sign_in import PATH as SESSION_PATH
from clary.control.server.pages.secret_names import hide_secrets
from clary.control.server.route_table import ROUTES
from clary.control.server.routing import Asked, Parts, Reads, Route, Who, match
from clary.control.store.damage import JobUnreadable
from clary.control.wire.messages import HttpRequest, HttpResponse

# A browser logs every answer 404 as an error, and pages often request documents that do not exist yet: the console's
# requests have the first header; such answers to them have status 200, and name the real status in the second header.
QUIET = "X-Clary-Quiet"
QUIET_STATUS = "X-Clary-Status"
_JOB_NAME = re.compile(r"[a-zA-Z0-9-]{1,63}")  # CreateTrainingJob, TrainingJobName


class ClaryHandler:
    """Answers requests for the routes of the table.

    Args:
        parts: parts of the service, for the routes' functions.
        authorizer: checks callers.
        guesses: counts wrong tokens.
    """

    def __init__(self, parts: Parts, authorizer: Authorizer, guesses: GuessLimiter) -> None:
        self._parts = parts
        self._authorizer = authorizer
        self._guesses = guesses
        self._large = LargeBodies()

    def admit(self, head: HttpRequest) -> Admission | Refusal:
        """Refuse a request by its head, or decide how large its body may be."""
        try:
            caller = self._enter(head)[1].caller
        except WireError as error:
            guessed = (head.header("authorization") or "").lower().startswith("bearer ")
            if not guessed or error.http_status != HTTPStatus.FORBIDDEN:
                return Refusal(answer=error_answer(error))
            wrong = self._guesses.note_wrong(head.remote)
            told = too_many_guesses(head.remote, wrong) if wrong.retry_after_s else error
            return Refusal(answer=error_answer(told), delay_s=wrong.delay_s)
        return Admission(client=caller.name, max_body_bytes=caller.max_body_bytes, is_known=caller.is_known)

    async def handle(self, request: HttpRequest) -> HttpResponse:
        """Answer one request."""
        try:
            return await self.answer(request)
        except JobUnreadable as error:
            return error_answer(WireError("Conflict", error.message, http_status=409))
        except WireError as error:
            is_quiet = request.header(QUIET) is not None and _is_merely_absent(request, error)
            return _quiet(error) if is_quiet else error_answer(error)

    async def answer(self, request: HttpRequest) -> HttpResponse:
        """Answer one request; raises WireError with the status to send."""
        route, asked = self._enter(request)
        if route.reads is not None:
            async with self._large.runner(request) as run:
                message = await run(_read_message, route.reads, request)
            asked = replace(self._enter(request)[1], message=message)  # the attempt may have ended meanwhile
        if route.who is Who.OWNER and "job" in asked.values:
            asked = replace(asked, found_job=await self._find_job(asked.values["job"]))
        document = route.act(self._parts, asked)
        if isinstance(document, Awaitable):
            document = await document
        if route.hides_secrets and asked.caller.session is not None:
            document = await asyncio.to_thread(hide_secrets, document)  # takes a second for a dump of many processes
        answer = document if isinstance(document, HttpResponse) else _json_answer(document)
        return finite_answer(answer) if route.who is Who.OWNER else answer

    def _enter(self, request: HttpRequest) -> tuple[Route, Asked]:
        """Return the route of a request, and the request with its caller. Raises: WireError for a refused caller."""
        route, values = match(ROUTES, request.method, request.raw_path)
        caller = self._authorizer.authorize(route.who, request, values)
        asked = Asked(request=request, values=values, caller=caller, found_job=caller.job)
        if route.who is Who.NOBODY:
            route.act(self._parts, asked)
        return route, asked

    async def _find_job(self, name: str) -> TrainingJob:
        job = await self._parts.services.find_job(name) if _JOB_NAME.fullmatch(name) else None
        if job is None:
            raise WireError("NotFound", f"there is no training job {name!r}", http_status=404)
        return job


def _json_answer(document: Any) -> HttpResponse:
    if document is None:
        return json_answer({})
    return json_answer(to_plain(document) if is_dataclass(document) else document)


def _read_message(reads: Reads, request: HttpRequest) -> Any:
    try:
        return from_plain(reads.cls, read_json(request, most_values=reads.most_values))
    except ContractError as error:
        raise WireError("ValidationException", error.message) from error


def _is_merely_absent(request: HttpRequest, error: WireError) -> bool:
    """Whether an error only says that a page or session does not exist."""
    if request.method == "GET" and request.raw_path == SESSION_PATH:
        return error.http_status == HTTPStatus.UNAUTHORIZED
    return error.http_status == HTTPStatus.NOT_FOUND


def _quiet(error: WireError) -> HttpResponse:
    answer = error_answer(error)
    return HttpResponse(HTTPStatus.OK, [*answer.headers, (QUIET_STATUS, str(error.http_status))], answer.body)
