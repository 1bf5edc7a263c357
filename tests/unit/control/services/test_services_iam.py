"""IAM set-up of scripts before their first job, without effect: policies, tags, roles by name."""

import json
import logging
from urllib.parse import unquote

import pytest

from clary.base.errors import WireError
from clary.control.permissions.api_rules import RULES
from clary.control.services.dispatch import HANDLERS
from clary.control.services.iam_changes import say_without_effect
from clary.control.settings import Settings
from clary.testing.control_plane import ControlPlane

POLICY = "arn:aws:iam::000000000000:policy/team/Mine"
DOCUMENT = '{"Version": "2012-10-17", "Statement": []}'
LISTED_ROLES = ["ClaryExecutionRole", "AmazonSageMaker-ExecutionRole-clary"]
WITHOUT_EFFECT = [
    ("AttachRolePolicy", {"RoleName": "r", "PolicyArn": POLICY}),
    ("DetachRolePolicy", {"RoleName": "r", "PolicyArn": POLICY}),
    ("PutRolePolicy", {"RoleName": "r", "PolicyName": "p", "PolicyDocument": DOCUMENT}),
    ("DeleteRolePolicy", {"RoleName": "r", "PolicyName": "p"}),
    ("TagRole", {"RoleName": "r", "Tags": [{"Key": "k", "Value": "v"}]}),
    ("UntagRole", {"RoleName": "r", "TagKeys": ["k"]}),
    ("UpdateAssumeRolePolicy", {"RoleName": "r", "PolicyDocument": DOCUMENT}),
    ("UpdateRole", {"RoleName": "r", "MaxSessionDuration": 7200}),
    ("DeleteRole", {"RoleName": "r"}),
    ("DeletePolicy", {"PolicyArn": POLICY}),
    ("DeletePolicyVersion", {"PolicyArn": POLICY, "VersionId": "v1"}),
    ("SetDefaultPolicyVersion", {"PolicyArn": POLICY, "VersionId": "v1"}),
    ("TagPolicy", {"PolicyArn": POLICY, "Tags": [{"Key": "k", "Value": "v"}]}),
    ("UntagPolicy", {"PolicyArn": POLICY, "TagKeys": ["k"]}),
]
EMPTY_LISTS = [
    ("ListAttachedRolePolicies", {"RoleName": "r"}, "AttachedPolicies"),
    ("ListRolePolicies", {"RoleName": "r"}, "PolicyNames"),
    ("ListRoleTags", {"RoleName": "r"}, "Tags"),
    ("ListPolicies", {}, "Policies"),
    ("ListPolicyTags", {"PolicyArn": POLICY}, "Tags"),
    ("ListEntitiesForPolicy", {"PolicyArn": POLICY}, "PolicyRoles"),
]


@pytest.fixture
async def plane(tmp_path):
    say_without_effect.cache_clear()  # as in a new process
    async with ControlPlane.open(tmp_path) as plane:
        yield plane


@pytest.mark.parametrize(("operation", "params"), WITHOUT_EFFECT)
async def test_a_change_of_a_role_or_policy_succeeds_and_the_log_says_that_it_has_no_effect(
    plane, operation, params, caplog
):
    before = await plane.call("iam", "GetRole", RoleName="r")
    with caplog.at_level(logging.INFO):
        assert await plane.call("iam", operation, **params) == {}
        assert await plane.call("iam", operation, **params) == {}
    assert caplog.text.count(f"iam:{operation} has no effect") == 1
    assert await plane.call("iam", "GetRole", RoleName="r") == before


@pytest.mark.parametrize(("operation", "params", "member"), EMPTY_LISTS)
async def test_nothing_is_listed_of_a_role_or_a_policy(plane, operation, params, member):
    assert (await plane.call("iam", operation, **params))[member] == []


async def test_a_policy_is_made_in_the_account_and_permits_everything(plane, caplog):
    with caplog.at_level(logging.INFO):
        made = await plane.call("iam", "CreatePolicy", PolicyName="Mine", Path="/team/", PolicyDocument=DOCUMENT)
    assert "iam:CreatePolicy has no effect" in caplog.text
    assert (made["Policy"]["Arn"], made["Policy"]["Path"]) == (POLICY, "/team/")
    found = (await plane.call("iam", "GetPolicy", PolicyArn=POLICY))["Policy"]
    assert (found["PolicyName"], found["Arn"]) == ("Mine", POLICY)
    (version,) = (await plane.call("iam", "ListPolicyVersions", PolicyArn=POLICY))["Versions"]
    assert version["VersionId"] == found["DefaultVersionId"] == made["Policy"]["DefaultVersionId"]
    read = await plane.call("iam", "GetPolicyVersion", PolicyArn=POLICY, VersionId=version["VersionId"])
    (statement,) = json.loads(unquote(read["PolicyVersion"]["Document"]))["Statement"]
    assert statement == {"Effect": "Allow", "Action": "*", "Resource": "*"}
    inline = await plane.call("iam", "GetRolePolicy", RoleName="r", PolicyName="p")
    assert inline["PolicyDocument"] == read["PolicyVersion"]["Document"]


async def test_a_policy_keeps_its_one_version(plane):
    made = await plane.call("iam", "CreatePolicyVersion", PolicyArn=POLICY, PolicyDocument=DOCUMENT)
    assert made["PolicyVersion"]["VersionId"] == "v1"
    with pytest.raises(WireError, match="v2") as error:
        await plane.call("iam", "GetPolicyVersion", PolicyArn=POLICY, VersionId="v2")
    assert (error.value.code, error.value.http_status) == ("NoSuchEntity", 404)


@pytest.mark.parametrize(
    "name", ["AmazonSageMaker-ExecutionRole-clary", "AmazonSageMaker-ExecutionRole-20240101T000000"]
)
async def test_a_role_of_sagemakers_own_set_up_has_its_path_in_every_answer(plane, name):
    role = (await plane.call("iam", "GetRole", RoleName=name))["Role"]
    assert (role["Path"], role["Arn"]) == ("/service-role/", f"arn:aws:iam::000000000000:role/service-role/{name}")


@pytest.mark.parametrize(
    ("prefix", "names"),
    [(None, LISTED_ROLES), ("/", LISTED_ROLES), ("/service-role/", LISTED_ROLES[1:]), ("/other/", [])],
)
async def test_roles_are_listed_by_their_paths(plane, prefix, names):
    answer = await plane.call("iam", "ListRoles", **({} if prefix is None else {"PathPrefix": prefix}))
    assert [role["RoleName"] for role in answer["Roles"]] == names
    for role in answer["Roles"]:
        assert role == (await plane.call("iam", "GetRole", RoleName=role["RoleName"]))["Role"]
    assert not answer["IsTruncated"]


async def test_roles_are_listed_in_pages(plane):
    first = await plane.call("iam", "ListRoles", MaxItems=1)
    assert first["IsTruncated"]
    second = await plane.call("iam", "ListRoles", MaxItems=1, Marker=first["Marker"])
    assert [role["RoleName"] for role in first["Roles"] + second["Roles"]] == LISTED_ROLES
    assert not second["IsTruncated"]
    assert "Marker" not in second
    with pytest.raises(WireError, match="nonsense") as error:
        await plane.call("iam", "ListRoles", Marker="nonsense")
    assert error.value.code == "ValidationError"


async def test_an_execution_role_of_that_name_is_listed_once(tmp_path):
    async with ControlPlane.open(tmp_path, settings=Settings(home=str(tmp_path), role_name=LISTED_ROLES[1])) as plane:
        answer = await plane.call("iam", "ListRoles")
    assert [role["RoleName"] for role in answer["Roles"]] == LISTED_ROLES[1:]


async def test_a_role_arn_without_a_name_can_not_be_assumed(plane):
    with pytest.raises(WireError) as error:
        await plane.call(
            "sts", "AssumeRole", RoleArn="arn:aws:iam::000000000000:role/service-role/", RoleSessionName="me"
        )
    assert error.value.code == "AccessDenied"


async def test_a_job_with_a_role_below_a_path_gets_no_warning(plane):
    arn = "arn:aws:iam::000000000000:role/service-role/AmazonSageMaker-ExecutionRole-clary"
    await plane.create(RoleArn=arn)
    assert (await plane.job()).request["RoleArn"] == arn


def test_a_jobs_key_may_make_no_call_that_would_change_a_role():
    allowed = {operation for service, operation in RULES if service == "iam"}
    assert allowed == {"CreateRole", "GetRole", "GetUser", "ListAttachedRolePolicies", "ListRoles"}
    assert {operation for operation, _ in WITHOUT_EFFECT} <= {name for service, name in HANDLERS if service == "iam"}
