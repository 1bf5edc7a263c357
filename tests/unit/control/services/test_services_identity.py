"""Requests that clients send to STS and IAM before they create a job."""

import base64
import json
from datetime import timedelta
from urllib.parse import unquote

import pytest

from clary.base.errors import WireError
from clary.control.services.call import Call
from clary.control.services.dispatch import dispatch
from clary.testing.control_plane import ControlPlane

ROLE = "arn:aws:iam::000000000000:role/Any"


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


async def test_a_role_can_not_be_created_because_every_role_exists(plane):
    with pytest.raises(WireError, match="Role with name Any already exists") as error:
        await plane.call("iam", "CreateRole", RoleName="Any", AssumeRolePolicyDocument="{}")
    assert (error.value.code, error.value.http_status) == ("EntityAlreadyExists", 409)
    assert (await plane.call("iam", "GetRole", RoleName="Any"))["Role"]["MaxSessionDuration"] == 3600


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


async def test_a_registry_token_states_that_there_is_no_registry(plane):
    (data,) = (await plane.call("ecr", "GetAuthorizationToken"))["authorizationData"]
    assert base64.b64decode(data["authorizationToken"]) == b"AWS:there-is-no-registry-here"
    assert data["proxyEndpoint"] == "https://000000000000.dkr.ecr.us-west-2.amazonaws.com"
    named = await plane.call("ecr", "GetAuthorizationToken", registryIds=["763104351884", "1" * 12])
    assert [item["proxyEndpoint"].partition(".")[0] for item in named["authorizationData"]] == [
        "https://763104351884",
        f"https://{'1' * 12}",
    ]


@pytest.mark.parametrize(
    ("operation", "params", "lasts_s"),
    [
        ("AssumeRole", {"RoleArn": ROLE, "RoleSessionName": "me"}, 3600),
        ("AssumeRole", {"RoleArn": ROLE, "RoleSessionName": "me", "DurationSeconds": 900}, 900),
        ("GetSessionToken", {}, 12 * 3600),
    ],
)
async def test_a_temporary_key_is_issued_and_valid_until_it_expires(plane, operation, params, lasts_s):
    answer = await plane.call("sts", operation, **params)
    made, now = answer["Credentials"], plane.services.clock.now()
    assert made["Expiration"] == now.replace(microsecond=0) + timedelta(seconds=lasts_s)
    judge = plane.services.temporary_keys.judge
    assert judge(made["AccessKeyId"], made["SessionToken"], now=now).secret == made["SecretAccessKey"]
    assert judge(made["AccessKeyId"], made["SessionToken"], now=made["Expiration"]).has_expired
    if operation == "AssumeRole":
        assert answer["AssumedRoleUser"]["Arn"] == "arn:aws:sts::000000000000:assumed-role/Any/me"


@pytest.mark.parametrize(
    ("params", "code"),
    [
        ({"RoleArn": "arn:aws:iam::999999999999:role/Any"}, "AccessDenied"),
        ({"RoleArn": ROLE, "Policy": "{}"}, "ValidationError"),
        ({"RoleArn": ROLE, "PolicyArns": [{"arn": "a"}]}, "ValidationError"),
    ],
)
async def test_a_restricted_role_or_a_role_of_another_account_is_refused(plane, params, code):
    with pytest.raises(WireError) as error:
        await plane.call("sts", "AssumeRole", RoleSessionName="me", **params)
    assert error.value.code == code


@pytest.mark.parametrize("key_id", ["CLARYTEMPAAAA", "CLARYJOBAAAA"])
async def test_a_temporary_key_can_not_issue_another_key(plane, key_id):
    call = Call(services=plane.services, params={}, region="r", access_key_id=key_id, request_id="R")
    with pytest.raises(WireError) as error:
        await dispatch("sts", "GetSessionToken", call)
    assert error.value.code == "AccessDenied"


async def test_the_source_identity_of_a_role_is_returned(plane):
    answer = await plane.call("sts", "AssumeRole", RoleArn=ROLE, RoleSessionName="me", SourceIdentity="somebody")
    assert answer["SourceIdentity"] == "somebody"
    assert "SourceIdentity" not in await plane.call("sts", "AssumeRole", RoleArn=ROLE, RoleSessionName="me")


async def who(plane, key_id="K", **members):
    """Return role, session and the session in the UserId of GetCallerIdentity."""
    call = Call(services=plane.services, params={}, region="r", access_key_id=key_id, request_id="R", **members)
    identity = await dispatch("sts", "GetCallerIdentity", call)
    account, role, session = identity["Arn"].removeprefix("arn:aws:sts::").replace(":assumed-role", "").split("/")
    assert account == identity["Account"] == "000000000000"
    user, _, named = identity["UserId"].partition(":")
    assert user.startswith("AROA")
    assert named == session
    return role, session


@pytest.mark.parametrize("role", ["Any", "service-role/Any"])
async def test_a_temporary_key_is_a_session_of_the_role_that_was_assumed(plane, role):
    arn = f"arn:aws:iam::000000000000:role/{role}"
    answer = await plane.call("sts", "AssumeRole", RoleArn=arn, RoleSessionName="me@x")
    made = answer["Credentials"]
    verdict = plane.services.temporary_keys.judge(
        made["AccessKeyId"], made["SessionToken"], now=plane.services.clock.now()
    )
    assert await who(plane, made["AccessKeyId"], holder=verdict.holder) == ("Any", "me@x")
    assert answer["AssumedRoleUser"]["AssumedRoleId"].partition(":")[2] == "me@x"


async def test_a_session_of_the_owner_is_the_owner(plane):
    made = (await plane.call("sts", "GetSessionToken"))["Credentials"]
    verdict = plane.services.temporary_keys.judge(
        made["AccessKeyId"], made["SessionToken"], now=plane.services.clock.now()
    )
    assert verdict.holder == ""
    assert await who(plane, made["AccessKeyId"]) == ("ClaryExecutionRole", "clary")


async def test_a_program_is_a_session_of_the_role_of_its_job(plane):
    await plane.create(RoleArn="arn:aws:iam::000000000000:role/service-role/Trainer")
    await plane.passes()
    key_id = (await plane.job()).plan["job_endpoint"]["credentials"]["access_key_id"]
    assert await who(plane, key_id) == ("Trainer", "SageMaker")
    assert await who(plane, "CLARYJOBAAAA") == ("ClaryExecutionRole", "clary")  # its job has just ended


async def test_a_refusal_names_the_caller(plane):
    call = Call(
        services=plane.services,
        params={"RoleArn": "arn:aws:iam::999999999999:role/Any", "RoleSessionName": "s"},
        region="r",
        access_key_id="CLARYTEMPAAAA",
        request_id="R",
        holder="Mine/me",
    )
    with pytest.raises(WireError, match=":assumed-role/Mine/me is not authorized"):
        await dispatch("sts", "AssumeRole", call)
