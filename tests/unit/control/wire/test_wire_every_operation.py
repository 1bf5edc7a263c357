"""Every operation of every service, in both directions, through botocore's own serialisers and parsers."""

from __future__ import annotations

import pytest
from wire_builders import REQUEST_ID, ValueMaker, read_by_botocore, request_by_botocore

from clary.control.wire.models import SERVICE_NAMES, Operation, Protocol, service
from clary.control.wire.parsing import parse
from clary.control.wire.routing import Router
from clary.control.wire.serializing import serialize

PROTOCOLS = {
    "sagemaker": (Protocol.JSON_1_1,),
    "logs": (Protocol.JSON_1_1,),
    "sts": (Protocol.QUERY,),
    "iam": (Protocol.QUERY,),
    "cloudwatch": (Protocol.JSON_1_0, Protocol.QUERY, Protocol.RPC_V2_CBOR),
    "sagemaker-metrics": (Protocol.REST_JSON,),
    "ecr": (Protocol.JSON_1_1,),
}
# Responses of these operations are event streams over an open connection; the service answers single requests.
EVENT_STREAMS = {"StartLiveTail", "GetLogObject"}


def operations(name: str, protocol: Protocol) -> list[Operation]:
    found = service(name)
    return [found.operation(operation_name, protocol) for operation_name in sorted(found.operation_names)]


def test_cbor_is_offered_wherever_the_model_lists_it():
    listed = {name for name in SERVICE_NAMES if Protocol.RPC_V2_CBOR in service(name).protocol_names}
    assert listed == {name for name in SERVICE_NAMES if Protocol.RPC_V2_CBOR in PROTOCOLS[name]}


CASES = [(name, protocol) for name in SERVICE_NAMES for protocol in PROTOCOLS[name]]


@pytest.mark.parametrize(("name", "protocol"), CASES)
def test_every_input_that_botocore_sends_is_parsed_unchanged(name, protocol):
    count = 0
    router = Router([service(name)])
    for operation in operations(name, protocol):
        shape = operation.model.input_shape
        # The JSON serialiser of botocore cuts fractions of seconds in requests.
        params = ValueMaker(whole_seconds=True).make(shape) if shape is not None else {}
        request = request_by_botocore(operation, params)
        assert router.route(request) is operation
        assert parse(request, operation) == params, operation.name
        count += 1
    print(f"{name} {protocol}: {count} inputs")
    assert count == len(service(name).operation_names)


@pytest.mark.parametrize(("name", "protocol"), CASES)
def test_every_output_is_parsed_back_by_botocore(name, protocol):
    count = 0
    for operation in operations(name, protocol):
        if operation.name in EVENT_STREAMS:
            continue
        shape = operation.model.output_shape
        result = ValueMaker().make(shape) if shape is not None else {}
        response = serialize(operation, result, request_id=REQUEST_ID)
        found = read_by_botocore(operation, response)
        assert response.header("x-amzn-requestid") == REQUEST_ID
        metadata = found.pop("ResponseMetadata")
        # botocore reads no request id from an RPC v2 answer without output.
        if shape is not None or protocol is not Protocol.RPC_V2_CBOR:
            assert metadata["RequestId"] == REQUEST_ID, operation.name
        assert found == result, operation.name
        count += 1
    print(f"{name} {protocol}: {count} outputs")
    assert count == len(service(name).operation_names - EVENT_STREAMS)


@pytest.mark.parametrize(("name", "protocol"), CASES)
def test_every_output_may_be_empty(name, protocol):
    for operation in operations(name, protocol):
        if operation.name in EVENT_STREAMS:
            continue
        found = read_by_botocore(operation, serialize(operation, {}, request_id=REQUEST_ID))
        found.pop("ResponseMetadata")
        assert found == {}, operation.name
