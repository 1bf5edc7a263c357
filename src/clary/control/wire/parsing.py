"""Conversion of requests to parameters: AWS's member names and Python's types.

Where: after routing and the check of the signature, before validation. Values are strings, ints, floats, bools, bytes
for blobs, aware datetimes for timestamps, lists and dicts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

from clary.base.errors import WireError
from clary.control.wire.cbor_documents import load_cbor
from clary.control.wire.cbor_values import cbor_reader
from clary.control.wire.compression import plain_body
from clary.control.wire.json_parsing import json_reader, load_document
from clary.control.wire.messages import HttpRequest
from clary.control.wire.models import Operation, Protocol
from clary.control.wire.query_parsing import form_reader, load_form
from clary.control.wire.rest_parsing import rest_reader
from clary.control.wire.scalars import MisfitError


def parse(request: HttpRequest, operation: Operation) -> dict[str, Any]:
    """Return the parameters of a request.

    Unknown members are ignored, as on AWS. The values have the model's types; the model's constraints are not checked
    yet.

    Raises: WireError with SerializationException (MalformedInput for query services) that names the member.
    """
    try:
        return _reader(operation)(request, plain_body(request))
    except MisfitError as error:
        where = f" (at '{error.location}')" if error.path else ""
        raise WireError(operation.malformed_code, f"{error.text}{where}") from error
    except RecursionError as error:
        raise WireError(operation.malformed_code, "the request is nested too deeply") from error


def unknown_members(request: HttpRequest, operation: Operation, params: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the dotted paths of members of a JSON or CBOR body that `parse` left out of `params`.

    The model lacks them; a newer client may send such members. Callers report that they have no effect.

    Args:
        request: a request that `parse` has read.
        operation: the operation that it names.
        params: what `parse` returned.
    """
    load = load_cbor if operation.protocol is Protocol.RPC_V2_CBOR else load_document
    document = load(body) if (body := plain_body(request)) else {}
    return tuple(_left_out(document, params, ""))


def _left_out(document: Any, params: Any, path: str) -> Iterator[str]:
    if isinstance(document, dict) and isinstance(params, Mapping):
        for name, value in document.items():
            inner = f"{path}.{name}" if path else name
            if name in params:
                yield from _left_out(value, params[name], inner)
            elif value is not None:
                yield inner
    elif isinstance(document, list) and isinstance(params, list):
        for item, read in zip(document, params, strict=True):
            yield from _left_out(item, read, path)


Reader = Callable[[HttpRequest, bytes], dict[str, Any]]


@cache
def _reader(operation: Operation) -> Reader:
    if operation.protocol is Protocol.REST_JSON:
        return rest_reader(operation.model)
    shape = operation.model.input_shape
    if operation.protocol is Protocol.QUERY:
        return _query_reader(shape)
    if operation.protocol is Protocol.RPC_V2_CBOR:
        return _body_reader(shape, load=load_cbor, compile_reader=cbor_reader, wanted="CBOR map")
    return _body_reader(shape, load=load_document, compile_reader=json_reader, wanted="JSON object")


def _body_reader(
    shape: Any, *, load: Callable[[bytes], Any], compile_reader: Callable[[Any], Callable[[Any], Any]], wanted: str
) -> Reader:
    read_document = compile_reader(shape) if shape is not None else lambda document: {}

    def read(request: HttpRequest, body: bytes) -> dict[str, Any]:
        document = load(body) if body else {}
        if type(document) is not dict:
            raise MisfitError(f"the body must be a {wanted}")
        found: dict[str, Any] = read_document(document)
        return found

    return read


def _query_reader(shape: Any) -> Reader:
    read_tree = form_reader(shape) if shape is not None else lambda tree: {}

    def read(request: HttpRequest, body: bytes) -> dict[str, Any]:
        form = body if request.method == "POST" else request.query.encode("utf-8", "surrogateescape")
        found: dict[str, Any] = read_tree(load_form(form))
        return found

    return read
