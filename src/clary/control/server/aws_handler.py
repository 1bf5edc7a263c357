"""Handling of an AWS request: route, verify, parse, validate, dispatch, serialise.

Where: the listener calls `admit` before it reads a body, and `handle` for every request that is neither for S3 nor for
the service's own pages. This module turns a `WireError` into an answer in the caller's protocol; the listener answers
other errors.

A large body is hashed, parsed and validated in a thread, one at a time, so that other requests are answered meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from uuid import uuid4

from clary.base.errors import NOTHING_CHANGED, WireError
from clary.contract import sigv4
from clary.control.jobs.members.judging import TABLES
from clary.control.permissions import api_rules
from clary.control.permissions.grants import Grants
from clary.control.permissions.temporary_keys import PREFIX
from clary.control.permissions.tracking_rules import MADE_BY
from clary.control.server.edge.gates import Admission, Refusal
from clary.control.server.edge.large_bodies import LargeBodies
from clary.control.services.call import Call, Services
from clary.control.services.dispatch import dispatch
from clary.control.store.tracking.experiment_rows import Kind
from clary.control.turns import Turns
from clary.control.wire.messages import HttpRequest, HttpResponse
from clary.control.wire.models import Operation, Protocol
from clary.control.wire.parsing import parse, unknown_members
from clary.control.wire.routing import protocol_of, route
from clary.control.wire.serializing import serialize, serialize_error
from clary.control.wire.signatures import SignatureVerifier
from clary.control.wire.validation import validate

CALLS_OF_A_JOB = 2  # concurrent calls with one job's key: a search in logs occupies a thread of the log store
# Operations that can attach warnings of unknown members to the job or its trials.
WARNING_OPERATIONS = {
    ("sagemaker", "CreateTrainingJob"),
    ("sagemaker", "UpdateTrainingJob"),
    ("sagemaker", "CreateHyperParameterTuningJob"),
}
# Operations whose members each have an entry in a table of decisions: an unknown member is refused unless the operation
# can warn of it.
DECIDED_OPERATIONS = {("sagemaker", name) for name in TABLES}
MAX_NAMED = 300  # characters of members' names in a refusal


class AwsHandler:
    """Answers requests of all AWS services except S3.

    Args:
        services: services that the operations' handlers use.
        verifier: verifies signatures and finds the signing key.
        find_grants: returns a key's grants; None permits everything.
        max_body_bytes: largest body of a request.
    """

    def __init__(
        self,
        services: Services,
        verifier: SignatureVerifier,
        *,
        find_grants: Callable[[str], Grants | None] = lambda _: None,
        max_body_bytes: int = 1 << 23,
    ) -> None:
        self._services = services
        self._verifier = verifier
        self._find_grants = find_grants
        self._max_body_bytes = max_body_bytes
        self._large = LargeBodies()
        self._turns = Turns(CALLS_OF_A_JOB)

    def admit(self, head: HttpRequest) -> Admission | Refusal:
        """Decide by a request's head whether to read its body: only for a client that names a known key."""
        protocol = protocol_of(head)
        try:
            authorization = self._verifier.judge_head(head, protocol=protocol)
        except WireError as error:
            return Refusal(answer=serialize_error(error, protocol=protocol, request_id=str(uuid4()), service=None))
        # Without a signed hash of the body the head proves nothing, because the name of a key is no secret. Then the
        # body counts against the budget of the address, and the connection may be evicted like an unknown client's.
        is_proved = head.header("x-amz-content-sha256") is not None
        client = f"key {authorization.access_key_id}" if is_proved else f"somebody at {head.remote}"
        return Admission(client=client, max_body_bytes=self._max_body_bytes, is_known=is_proved)

    async def handle(self, request: HttpRequest) -> HttpResponse:
        """Return the answer to one request."""
        request_id = str(uuid4())
        operation: Operation | None = None
        try:
            # The turn of a large body ends before the call, which may wait for others of the same job.
            async with self._large.runner(request) as run:
                operation = await run(route, request)
                body_hash = await run(sigv4.payload_hash, request.body)
                authorization = self._verifier.verify(request, body_hash, operation=operation)
                params, unknown = await run(_params, request, operation)
            grants = self._find_grants(authorization.access_key_id)
            if grants is not None:
                await self._permit(grants, operation, params)
            call = Call(
                services=self._services,
                params=params,
                region=authorization.region,
                access_key_id=authorization.access_key_id,
                request_id=request_id,
                unknown_members=unknown,
                grants=grants,
                holder=self._verifier.holder_of(request) if authorization.access_key_id.startswith(PREFIX) else "",
            )
            if grants is None:
                result = await dispatch(operation.service.name, operation.name, call)
            else:
                async with self._turns.taken(grants.job_id):
                    result = await dispatch(operation.service.name, operation.name, call)
            return serialize(operation, result, request_id=request_id)
        except WireError as error:
            if error.details.get(NOTHING_CHANGED):
                self._verifier.give_back(request)  # a client that retries at once sends the same signature
            protocol = operation.protocol if operation is not None else protocol_of(request)
            service = operation.service if operation is not None else None
            return serialize_error(error, protocol=protocol, request_id=request_id, service=service)

    async def _permit(self, grants: Grants, operation: Operation, params: Mapping[str, Any]) -> None:
        """Raise WireError for a request that the key of a job may not make."""
        service = operation.service.name
        decision = api_rules.decide(grants, service, operation.name, params)
        store = self._services.store
        for kind, name in decision.if_made if decision.is_allowed else ():
            record = await store.experiments.get(Kind(kind), name)
            if record is not None and (await store.get_tags(record.arn)).get(MADE_BY) != grants.job_id:
                decision = api_rules.refused(grants, service, operation.name, params)
                break
        if decision.is_allowed:
            return
        if operation.protocol is Protocol.QUERY:
            raise WireError("AccessDenied", decision.reason, http_status=403)
        raise WireError("AccessDeniedException", decision.reason)


def _params(request: HttpRequest, operation: Operation) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the parameters of a request, and the unknown members that were removed with a warning.

    Raises: WireError, also for unknown members if the operation cannot warn of them.
    """
    params = parse(request, operation)
    validate(operation, params)
    key = (operation.service.name, operation.name)
    unknown = unknown_members(request, operation, params) if key in DECIDED_OPERATIONS | WARNING_OPERATIONS else ()
    if unknown and key not in WARNING_OPERATIONS:
        raise WireError(
            "ValidationException",
            f"{', '.join(unknown)[:MAX_NAMED]}: this release knows no such member of {operation.name}; leave it out.",
        )
    return params, unknown
