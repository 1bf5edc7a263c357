"""What clients ask of STS and IAM before they create a job."""

import base64
import json
from urllib.parse import unquote

import pytest

from clary.contract.errors import WireError
from clary.testing.control_plane import ControlPlane


@pytest.fixture
async def plane(tmp_path):
    async with ControlPlane.open(tmp_path) as plane:
        yield plane


async def test_the_caller_is_a_session_of_the_execution_role(plane):
    identity = await plane.call("sts", "GetCallerIdentity")
    assert identity["Arn"] == "arn:aws:sts::000000000000:assumed-role/ClaryExecutionRole/clary"
    assert identity["Account"] == "000000000000"


async def test_a_role_trusts_sagemaker_in_a_document_that_clients_can_decode(plane):
    role = (await plane.call("iam", "GetRole", RoleName="Any"))["Role"]
    assert role["Arn"] == "arn:aws:iam::000000000000:role/Any"
    statement = json.loads(unquote(role["AssumeRolePolicyDocument"]))["Statement"][0]
    assert statement["Principal"] == {"Service": "sagemaker.amazonaws.com"}


async def test_every_action_on_every_resource_is_allowed(plane):
    answer = await plane.call(
        "iam", "SimulatePrincipalPolicy", ActionNames=["s3:PutObject", "x:Y"], ResourceArns=["arn:a", "arn:b"]
    )
    asked = [(item["EvalActionName"], item["EvalResourceName"]) for item in answer["EvaluationResults"]]
    assert asked == [("s3:PutObject", "arn:a"), ("s3:PutObject", "arn:b"), ("x:Y", "arn:a"), ("x:Y", "arn:b")]
    assert {item["EvalDecision"] for item in answer["EvaluationResults"]} == {"allowed"}
    alone = await plane.call("iam", "SimulatePrincipalPolicy", ActionNames=["x:Y"])
    assert [item["EvalResourceName"] for item in alone["EvaluationResults"]] == ["*"]


async def test_there_is_no_user_and_no_policy_to_attach(plane):
    with pytest.raises(WireError) as error:
        await plane.call("iam", "GetUser")
    assert (error.value.code, error.value.http_status) == ("NoSuchEntity", 404)
    assert (await plane.call("iam", "ListAttachedRolePolicies", RoleName="r"))["AttachedPolicies"] == []


async def test_the_execution_role_is_listed(plane):
    roles = (await plane.call("iam", "ListRoles"))["Roles"]
    assert [role["Arn"] for role in roles] == ["arn:aws:iam::000000000000:role/ClaryExecutionRole"]
    assert (await plane.call("iam", "ListRoles", PathPrefix="/other/"))["Roles"] == []


async def test_a_registry_gives_a_token_that_says_there_is_none(plane):
    (data,) = (await plane.call("ecr", "GetAuthorizationToken"))["authorizationData"]
    assert base64.b64decode(data["authorizationToken"]) == b"AWS:there-is-no-registry-here"
    assert data["proxyEndpoint"] == "https://000000000000.dkr.ecr.us-west-2.amazonaws.com"
    named = await plane.call("ecr", "GetAuthorizationToken", registryIds=["763104351884", "1" * 12])
    assert [item["proxyEndpoint"].partition(".")[0] for item in named["authorizationData"]] == [
        "https://763104351884",
        f"https://{'1' * 12}",
    ]
