"""One AWS request from bytes to bytes: route, verify, parse, validate, dispatch, serialise.

Where: the listener hands over everything that is neither S3 nor the service's own. `WireError` becomes an answer in
the caller's protocol here; what else is raised is the listener's to answer.
"""

from __future__ import annotations

from uuid import uuid4

from clary.contract.errors import WireError
from clary.control.services.call import Call, Services
from clary.control.services.dispatch import dispatch
from clary.control.wire.messages import HttpRequest, HttpResponse
from clary.control.wire.models import Operation
from clary.control.wire.parsing import parse
from clary.control.wire.routing import protocol_of, route
from clary.control.wire.serializing import serialize, serialize_error
from clary.control.wire.signatures import SignatureVerifier
from clary.control.wire.validation import validate


class AwsHandler:
    """Answers requests of every service but S3."""

    def __init__(self, services: Services, verifier: SignatureVerifier) -> None:
        self._services = services
        self._verifier = verifier

    async def handle(self, request: HttpRequest) -> HttpResponse:
        """Return the answer to one request."""
        request_id = str(uuid4())
        operation: Operation | None = None
        try:
            operation = route(request)
            authorization = self._verifier.verify(request, operation=operation)
            params = parse(request, operation)
            validate(operation, params)
            call = Call(
                services=self._services,
                params=params,
                region=authorization.region,
                access_key_id=authorization.access_key_id,
                request_id=request_id,
            )
            result = await dispatch(operation.service.name, operation.name, call)
            return serialize(operation, result, request_id=request_id)
        except WireError as error:
            protocol = operation.protocol if operation is not None else protocol_of(request)
            service = operation.service if operation is not None else None
            return serialize_error(error, protocol=protocol, request_id=request_id, service=service)
