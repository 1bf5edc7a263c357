"""One AWS request from bytes to bytes: route, verify, parse, validate, dispatch, serialise.

Where: the listener hands over everything that is neither S3 nor the service's own. `WireError` becomes an answer in
the caller's protocol here; what else is raised is the listener's to answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from uuid import uuid4

from clary.contract.errors import WireError
from clary.control.permissions import api_rules
from clary.control.permissions.grants import Grants
from clary.control.permissions.tracking_rules import MADE_BY
from clary.control.services.call import Call, Services
from clary.control.services.dispatch import dispatch
from clary.control.store.experiment_rows import Kind
from clary.control.wire.messages import HttpRequest, HttpResponse
from clary.control.wire.models import Operation, Protocol
from clary.control.wire.parsing import parse
from clary.control.wire.routing import protocol_of, route
from clary.control.wire.serializing import serialize, serialize_error
from clary.control.wire.signatures import SignatureVerifier
from clary.control.wire.validation import validate


class AwsHandler:
    """Answers requests of every service but S3.

    Args:
        services: what handlers may use.
        verifier: says whose key a request was signed with.
        find_grants: what a key opens; None for everything.
    """

    def __init__(
        self,
        services: Services,
        verifier: SignatureVerifier,
        *,
        find_grants: Callable[[str], Grants | None] = lambda _: None,
    ) -> None:
        self._services = services
        self._verifier = verifier
        self._find_grants = find_grants

    async def handle(self, request: HttpRequest) -> HttpResponse:
        """Return the answer to one request."""
        request_id = str(uuid4())
        operation: Operation | None = None
        try:
            operation = route(request)
            authorization = self._verifier.verify(request, operation=operation)
            params = parse(request, operation)
            validate(operation, params)
            grants = self._find_grants(authorization.access_key_id)
            if grants is not None:
                await self._permit(grants, operation, params)
            call = Call(
                services=self._services,
                params=params,
                region=authorization.region,
                access_key_id=authorization.access_key_id,
                request_id=request_id,
                grants=grants,
            )
            result = await dispatch(operation.service.name, operation.name, call)
            return serialize(operation, result, request_id=request_id)
        except WireError as error:
            protocol = operation.protocol if operation is not None else protocol_of(request)
            service = operation.service if operation is not None else None
            return serialize_error(error, protocol=protocol, request_id=request_id, service=service)

    async def _permit(self, grants: Grants, operation: Operation, params: Mapping[str, Any]) -> None:
        """Raise WireError for what the key of a job may not do."""
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
