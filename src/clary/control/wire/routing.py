"""Routing: the operation that a request names.

Where: first step of the wire. The credential scope of the signature names the service; X-Amz-Target, the form's
Action, or method and path name the operation. Unsigned requests are routed too, so that the sender can parse the
refusal. Source: Smithy's AWS JSON, query, restJson1 and RPC v2 CBOR protocols.

[Note: unsigned content types] Some SDKs do not sign the content type, nor must smithy-protocol be signed. So neither
chooses a protocol alone. X-Amz-Target, which is signed if it is sent, means JSON; a form is read at the path `/` only,
where no other request without X-Amz-Target is answered; a CBOR request has its operation in its path. A change of these
two headers on the way can only make the request fail.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cache
from urllib.parse import unquote, unquote_plus

from clary.base.errors import WireError
from clary.control.wire.compression import beginning_of_body
from clary.control.wire.messages import HttpRequest
from clary.control.wire.models import Operation, Protocol, Service, all_services
from clary.control.wire.scalars import MisfitError
from clary.control.wire.uri_templates import UriTemplate

_JSON_PROTOCOLS = {
    "application/x-amz-json-1.0": Protocol.JSON_1_0,
    "application/x-amz-json-1.1": Protocol.JSON_1_1,
}
_FORM = "application/x-www-form-urlencoded"
_SMITHY_HEADER = "smithy-protocol"
_RPC_V2_CBOR = "rpc-v2-cbor"
_RPC_PATH = re.compile(r"/service/([A-Za-z0-9_]+)/operation/([A-Za-z0-9_]+)")
_SCOPE = re.compile(r"Credential=[^,\s]*?/\d{8}/[^/,\s]*/([^/,\s]+)/")
_QUERY_SCOPE = re.compile(r"(?i:x-amz-credential)=[^&]*?%2F\d{8}%2F[^&%]*%2F([^&%]+)%2F", re.IGNORECASE)
# signing names of AWS's services that use the restXml protocol
REST_XML_SCOPES = ("cloudfront", "route53", "s3", "s3express")
_ACTION = re.compile(rb"(?:^|&)Action=([^&]*)")
_VERSION = re.compile(rb"(?:^|&)Version=([^&]*)")
MAX_SEARCHED_BYTES = 1024 * 1024  # of a compressed form, whose Action clients write first
_ROOT = ("/", "")
_BESIDE = frozenset({"s3"})  # signing names that the service answers, but not by this routing
# Model of a service -> what it offers here; refusals say it, and SDKs pass it on to users of `deploy()` or `predict()`.
OFFERED = {
    "sagemaker": "training jobs, tuning jobs and experiments, and no models, endpoints, processing jobs or pipelines"
}
_SHOWN_CHARACTERS = 80  # maximum number of characters of a client's text that an error shows


class Router:
    """Finds operations among services."""

    def __init__(self, services: Iterable[Service]) -> None:
        self._services = tuple(services)
        self._templates: dict[Service, list[tuple[UriTemplate, str]]] = {}

    def route(self, request: HttpRequest) -> Operation:
        """Return the operation that a request names.

        Raises: WireError with UnknownOperationException, InvalidAction or MissingAction if there is none.
        """
        services = self._in_scope(request)
        target = request.header("x-amz-target")
        if target is not None:
            return self._by_target(request, services, target)
        if _is_query(request):
            return self._by_action(request, services)
        if request.header(_SMITHY_HEADER) is not None:
            return self._by_rpc_path(request, services)
        return self._by_path(request, services)

    def _in_scope(self, request: HttpRequest) -> Sequence[Service]:
        scope = credential_service(request)
        if scope is None:
            return self._services
        found = [service for service in self._services if service.signing_name == scope]
        if not found:
            offered = ", ".join(sorted({service.signing_name for service in self._services} | _BESIDE))
            raise _unknown(f"Credential should be scoped to a service that is offered here ({offered}), got {scope!r}.")
        return found

    def _by_target(self, request: HttpRequest, services: Sequence[Service], target: str) -> Operation:
        protocol = _JSON_PROTOCOLS.get(_media_type(request))
        if protocol is None:
            raise _unknown(
                f"Requests with X-Amz-Target need the content type application/x-amz-json-1.1 (or 1.0), "
                f"got {_shown(request.header('content-type') or 'none')}."
            )
        if request.method != "POST" or request.raw_path not in _ROOT:
            raise _unknown(f"X-Amz-Target needs POST /, got {request.method} {_shown(request.raw_path)}.")
        prefix, _, name = target.rpartition(".")
        for service in services:
            if service.target_prefix == prefix and name in service.operation_names and "json" in service.protocol_names:
                return service.operation(name, protocol)
        raise _unknown(f"The requested operation {_shown(target)} is not recognized by the service.")

    def _by_action(self, request: HttpRequest, services: Sequence[Service]) -> Operation:
        if request.raw_path not in _ROOT:
            raise WireError("InvalidAction", f"Forms with an Action need the path /, got {_shown(request.raw_path)}.")
        form = _form_of(request)
        action, version = _ACTION.search(form), _VERSION.search(form)
        if action is None or not action[1]:
            raise WireError("MissingAction", "The request is missing an Action parameter: add Action=<operation>.")
        name = unquote_plus(action[1].decode("ascii", "replace"))
        wanted = unquote_plus(version[1].decode("ascii", "replace")) if version is not None else None
        for service in services:
            if (
                "query" in service.protocol_names
                and name in service.operation_names
                and wanted in (None, service.api_version)
            ):
                return service.operation(name, Protocol.QUERY)
        raise WireError("InvalidAction", f"Could not find operation {_shown(name)} for version {_shown(wanted or '')}.")

    def _by_rpc_path(self, request: HttpRequest, services: Sequence[Service]) -> Operation:
        spoken = request.header(_SMITHY_HEADER)
        if spoken != _RPC_V2_CBOR:
            raise _unknown(f"Of Smithy's protocols only {_RPC_V2_CBOR} is offered here, got {_shown(spoken or '')}.")
        wanted = Protocol.RPC_V2_CBOR
        if request.body and _media_type(request) != wanted.content_type:
            raise _unknown(
                f"Requests with smithy-protocol {_RPC_V2_CBOR} need the content type {wanted.content_type}, "
                f"got {_shown(request.header('content-type') or 'none')}."
            )
        match = _RPC_PATH.fullmatch(request.raw_path)
        if match is None or request.method != "POST":
            raise _unknown(
                "A request with smithy-protocol needs POST /service/SERVICE/operation/OPERATION, "
                f"got {request.method} {_shown(request.raw_path)}."
            )
        prefix, name = match.groups()
        for service in services:
            if service.target_prefix == prefix and name in service.operation_names and wanted in service.protocol_names:
                return service.operation(name, wanted)
        raise _unknown(f"No operation answers {_shown(request.raw_path)}. Use a client that speaks AWS JSON or query.")

    def _by_path(self, request: HttpRequest, services: Sequence[Service]) -> Operation:
        for service in services:
            for template, name in self._templates_of(service):
                if template.match(request.method, request.raw_path, request.query) is not None:
                    return service.operation(name, Protocol.REST_JSON)
        # Endpoints and feature groups are called by paths, signed for the same service as training jobs.
        offered = OFFERED.get(credential_service(request) or "", "")
        instead = f": this service offers {offered}" if offered else ""
        raise _unknown(
            f"No operation answers {request.method} {_shown(request.raw_path)} without X-Amz-Target{instead}."
        )

    def _templates_of(self, service: Service) -> list[tuple[UriTemplate, str]]:
        found = self._templates.get(service)
        if found is None:
            found = []
            if "rest-json" in service.protocol_names:
                found = [
                    (UriTemplate.of(service.model.operation_model(name).http), name)
                    for name in sorted(service.operation_names)
                ]
                # The most literal template wins: /jobs/latest before /jobs/{name}.
                found.sort(key=lambda pair: pair[0].specificity, reverse=True)
            self._templates[service] = found
        return found


@cache
def default_router() -> Router:
    """Return the router over every service; loads all models."""
    return Router(all_services())


def route(request: HttpRequest) -> Operation:
    """Return the operation that a request names, among every service; see `Router.route`."""
    return default_router().route(request)


def protocol_of(request: HttpRequest) -> Protocol:
    """Return the protocol in which the sender can parse an error, even if no operation was found."""
    media_type = _media_type(request)
    if media_type in _JSON_PROTOCOLS:
        return _JSON_PROTOCOLS[media_type]
    if request.header("x-amz-target") is not None:
        return Protocol.JSON_1_1
    if request.header(_SMITHY_HEADER) == _RPC_V2_CBOR:
        return Protocol.RPC_V2_CBOR
    # Clients of restXml can parse the query protocol's errors; Clary offers no restXml service.
    is_xml = _is_query(request) or credential_service(request) in REST_XML_SCOPES
    return Protocol.QUERY if is_xml else Protocol.REST_JSON


def credential_service(request: HttpRequest) -> str | None:
    """Return the service in the request's credential scope; None without a signature or a readable scope."""
    authorization = request.header("authorization")
    if authorization is not None:
        match = _SCOPE.search(authorization)
        return match[1] if match is not None else None
    match = _QUERY_SCOPE.search(request.query)
    return unquote(match[1]) if match is not None else None


def _form_of(request: HttpRequest) -> bytes:
    if request.method != "POST":
        return request.query.encode("utf-8", "surrogateescape")
    try:
        return beginning_of_body(request, MAX_SEARCHED_BYTES)
    except MisfitError as error:
        raise WireError("MalformedInput", error.text) from error


def _is_query(request: HttpRequest) -> bool:
    if request.method == "POST":
        return _media_type(request) == _FORM
    return request.method == "GET" and _ACTION.search(request.query.encode("utf-8", "surrogateescape")) is not None


def _media_type(request: HttpRequest) -> str:
    return (request.header("content-type") or "").partition(";")[0].strip().lower()


def _shown(text: str) -> str:
    return repr(text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "...")


def _unknown(message: str) -> WireError:
    return WireError("UnknownOperationException", message)
