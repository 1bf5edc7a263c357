"""Unsupported operations of known services: listings are empty by one rule, all others are refused by name."""

import pytest
from wire_builders import read_by_botocore

from clary.base.errors import WireError
from clary.control.services.dispatch import HANDLERS, LISTED_EMPTY, dispatch
from clary.control.wire.models import Protocol, service
from clary.control.wire.serializing import serialize

PROTOCOLS = {"iam": Protocol.QUERY}


def unoffered():
    for name in sorted(LISTED_EMPTY):
        for operation_name in sorted(service(name).operation_names):
            if (name, operation_name) not in HANDLERS:
                yield service(name).operation(operation_name, PROTOCOLS.get(name, Protocol.JSON_1_1))


async def test_listings_of_unsupported_kinds_are_empty_and_parsed_by_botocore():
    listed, refused = [], []
    for operation in unoffered():
        try:
            answer = await dispatch(operation.service.name, operation.name, call=None)
        except WireError as error:
            refused.append((error.code, error.message, operation.name))
            continue
        listed.append(operation.name)
        found = read_by_botocore(operation, serialize(operation, answer, request_id="r"))
        assert found["ResponseMetadata"]["HTTPStatusCode"] == 200
        assert [name for name, value in found.items() if isinstance(value, list) and value] == []
    assert {"ListEndpoints", "ListProcessingJobs", "ListUsers", "ListDashboards"} <= set(listed)
    assert {"ListRolePolicies", "ListRoleTags", "ListInstanceProfilesForRole"} <= set(listed), "every role exists"
    assert all(name.startswith("List") for name in listed)
    assert {code for code, _, _ in refused} == {"UnknownOperationException"}
    assert all(name in message for _, message, name in refused)
    assert {"CreateEndpoint", "DescribeEndpoint", "ListPipelineExecutions", "ListUserPolicies"} <= {
        name for _, _, name in refused
    }


@pytest.mark.parametrize("operation", ["ListLogGroups", "ListAnomalies"])
async def test_an_unsupported_listing_of_logs_is_refused(operation):
    with pytest.raises(WireError, match=operation):
        await dispatch("logs", operation, call=None)
