"""One AWS request from bytes to bytes: route, verify, parse, validate, dispatch, serialise.

Where: the listener hands over everything that is neither S3 nor the service's own. The one place where an exception
becomes an answer: `WireError` in the caller's protocol, anything else InternalFailure with the request's id.
"""

from __future__ import annotations

import logging
from uuid import uuid4

from clary.control.wire.serializing import serialize, serialize_error
from clary.control.wire.signatures import SignatureVerifier

from clary.contract.errors import WireError
from clary.control.services.call import Call, Services
from clary.control.services.dispatch import dispatch
from clary.control.wire.messages import HttpRequest, HttpResponse
from clary.control.wire.parsing import parse
from clary.control.wire.routing import Operation, route
from clary.control.wire.validation import validate

log = logging.getLogger(__name__)


class AwsHandler:
    """Answers requests of every service but S3."""

    def __init__(self, services: Services, verifier: SignatureVerifier) -> None:
        self._services = services
        self._verifier = verifier

    async def handle(self, request: HttpRequest) -> HttpResponse:
        """Return the answer to one request; never raises."""
        request_id = str(uuid4())
        operation: Operation | None = None
        try:
            operation = route(request)
            authorization = self._verifier.verify(request, operation)
            params = parse(request, operation)
            validate(operation, params)
            call = Call(
                services=self._services,
                params=params,
                region=authorization.region,
                access_key_id=authorization.access_key_id,
                request_id=request_id,
            )
            result = await dispatch(operation.service, operation.name, call)
            return serialize(operation, dict(result), request_id=request_id)
        except WireError as error:
            return serialize_error(error, operation=operation, request=request, request_id=request_id)
        except Exception:  # boundary: the edge of the API
            log.exception("request %s (%s) failed", request_id, operation.name if operation else "unrouted")
            error = WireError(
                "InternalFailure", f"The request failed for a reason of ours: {request_id}", http_status=500
            )
            return serialize_error(error, operation=operation, request=request, request_id=request_id)
