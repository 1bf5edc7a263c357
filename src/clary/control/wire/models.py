"""Service models: the operations and shapes of each AWS service, read from botocore's own data.

Where: routing looks operations up here; parsing, validation and serializing compile an operation's shapes once and
cache the result for the life of the process. Models load on first use (about 0.1 s for SageMaker, less for others).
Source: botocore's `service-2.json` files; shapes are documented in AWS's API references under the same names.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import cache, cached_property
from typing import Any

from botocore.loaders import Loader
from botocore.model import ServiceModel

# Names of botocore's data folders; all other facts about these services are in the data.
SERVICE_NAMES = ("sagemaker", "logs", "sts", "iam", "cloudwatch", "sagemaker-metrics", "ecr")

# Services whose error for a broken constraint is InvalidParameterException (their API references).
_INVALID_PARAMETER_SERVICES = frozenset({"logs", "ecr"})


class Protocol(StrEnum):
    """Format of a request and its answer."""

    JSON_1_0 = "json-1.0"  # X-Amz-Target, application/x-amz-json-1.0
    JSON_1_1 = "json-1.1"  # X-Amz-Target, application/x-amz-json-1.1
    QUERY = "query"  # form with Action as request, XML as answer
    REST_JSON = "rest-json"  # HTTP method and path identify the operation
    RPC_V2_CBOR = "smithy-rpc-v2-cbor"  # POST /service/PREFIX/operation/NAME, CBOR both ways

    @property
    def content_type(self) -> str:
        """Content type of answers."""
        return _CONTENT_TYPES[self]


_CONTENT_TYPES = {
    Protocol.JSON_1_0: "application/x-amz-json-1.0",
    Protocol.JSON_1_1: "application/x-amz-json-1.1",
    Protocol.QUERY: "text/xml",
    Protocol.REST_JSON: "application/json",
    Protocol.RPC_V2_CBOR: "application/cbor",
}


@dataclass(frozen=True)
class ExceptionModel:
    """An error that a service's model defines."""

    shape_name: str  # NoSuchEntityException
    code: str  # code for query clients, such as NoSuchEntity
    http_status: int | None  # None if the model names no status
    message_member: str  # message, or Message
    is_sender_fault: bool


class Service:
    """One AWS service; compared and hashed by identity, so that it can be a key for compiled operations."""

    def __init__(self, name: str, model: Any) -> None:
        """Wrap a botocore ServiceModel."""
        self.name = name
        self.model = model
        self.metadata: dict[str, Any] = model.metadata
        self._operations: dict[tuple[str, Protocol], Operation] = {}

    @cached_property
    def signing_name(self) -> str:
        """Name of the service in the credential scope of signatures."""
        return str(self.metadata.get("signingName") or self.metadata.get("endpointPrefix", self.name))

    @cached_property
    def target_prefix(self) -> str:
        """Prefix of the operation's name in X-Amz-Target and in paths of RPC v2; empty for services without both."""
        return str(self.metadata.get("targetPrefix", ""))

    @cached_property
    def api_version(self) -> str:
        """API version that query clients send."""
        return str(self.metadata.get("apiVersion", ""))

    @cached_property
    def xml_namespace(self) -> str:
        """Namespace of XML answers."""
        return str(self.metadata.get("xmlNamespace", ""))

    @cached_property
    def is_query_compatible(self) -> bool:
        """Whether JSON errors also carry the error code for older query clients."""
        return "awsQueryCompatible" in self.metadata

    @cached_property
    def protocol_names(self) -> frozenset[str]:
        """Protocols of the model by botocore's names: json, query, rest-json, smithy-rpc-v2-cbor..."""
        return frozenset(self.metadata.get("protocols") or [self.metadata["protocol"]])

    @cached_property
    def operation_names(self) -> frozenset[str]:
        """Operations of the model."""
        return frozenset(self.model.operation_names)

    @cached_property
    def exceptions(self) -> dict[str, ExceptionModel]:
        """Modelled errors by shape name and by query code."""
        found: dict[str, ExceptionModel] = {}
        for shape in self.model.error_shapes:
            error = shape.metadata.get("error", {})
            member = next((name for name in shape.members if name.lower() == "message"), "message")
            model = ExceptionModel(
                shape_name=shape.name,
                code=str(error.get("code", shape.name)),
                http_status=error.get("httpStatusCode"),
                message_member=member,
                is_sender_fault=bool(error.get("senderFault", not shape.metadata.get("fault", False))),
            )
            found[model.shape_name] = model
            found.setdefault(model.code, model)
        return found

    def operation(self, name: str, protocol: Protocol) -> Operation:
        """Return an operation in a protocol; raises KeyError if the model lacks the name."""
        found = self._operations.get((name, protocol))
        if found is None:
            if name not in self.operation_names:
                raise KeyError(name)
            found = Operation(self, name, protocol, self.model.operation_model(name))
            # setdefault, so that two threads that create the same operation get the same object.
            found = self._operations.setdefault((name, protocol), found)
        return found

    def __repr__(self) -> str:
        return f"Service({self.name!r})"


@dataclass(frozen=True, eq=False)
class Operation:
    """One operation of one service in one protocol; compared by identity."""

    service: Service
    name: str
    protocol: Protocol
    model: Any  # botocore.model.OperationModel

    @property
    def validation_code(self) -> str:
        """Error code of a request that breaks the model's constraints."""
        if self.service.name in _INVALID_PARAMETER_SERVICES:
            return "InvalidParameterException"
        is_query = self.protocol is Protocol.QUERY or self.service.is_query_compatible
        return "ValidationError" if is_query else "ValidationException"

    @property
    def malformed_code(self) -> str:
        """Error code of a request whose body cannot be read."""
        return "MalformedInput" if self.protocol is Protocol.QUERY else "SerializationException"


@cache
def service(name: str) -> Service:
    """Return a service by the name of botocore's data folder; loaded once."""
    return Service(name, ServiceModel(Loader().load_service_model(name, "service-2"), name))


def all_services(names: Iterable[str] = SERVICE_NAMES) -> tuple[Service, ...]:
    """Return the named services, by default every service of the wire; load the missing ones."""
    return tuple(service(name) for name in names)
