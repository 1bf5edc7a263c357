"""Describe, List and Search can return every request that Create accepts, and every record that a store may hold."""

import asyncio
import json
from dataclasses import replace
from itertools import count

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from model_requests import create_operation, full_value, json_values, values

from clary.base.errors import WireError
from clary.control.store.job_documents import row_of
from clary.control.store.tables import jobs
from clary.control.store.tracking.experiment_rows import Kind
from clary.control.wire.models import Protocol, service
from clary.control.wire.serializing import serialize
from clary.control.wire.validation import validate
from clary.testing.control_plane import ControlPlane, request_of

SHAPE = create_operation().model.input_shape
BASE = request_of(
    AlgorithmSpecification={"TrainingImage": "generic:1", "ContainerEntrypoint": ["true"], "TrainingInputMode": "File"}
)
OPTIONAL = tuple(name for name in SHAPE.members if name not in BASE)
REFUSED = ("ServerlessJobConfig", "MlflowConfig", "ModelPackageConfig")  # no job may have these members
TELLABLE = tuple(name for name in OPTIONAL if name not in REFUSED)
BAD_REQUEST = 400
SEARCHED = {
    "Experiment": "Experiment",
    "Trial": "ExperimentTrial",
    "TrialComponent": "ExperimentTrialComponent",
}
NUMBERS = count()
TABLE = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
def run():
    """Run coroutines one after another on one loop, because hypothesis calls plain functions."""
    with asyncio.Runner() as runner:
        yield runner.run


@pytest.fixture
def plane(run, tmp_path):
    opened = ControlPlane.open(tmp_path)
    yield run(opened.__aenter__())
    run(opened.__aexit__(None, None, None))


async def answers(plane, name):
    """Return the serialised body of every operation's response about a job."""
    questions = {
        "DescribeTrainingJob": {"TrainingJobName": name},
        "ListTrainingJobs": {"NameContains": name},
        "Search": {"Resource": "TrainingJob", "SearchExpression": named(name)},
        "DescribeTrialComponent": {"TrialComponentName": f"{name}-aws-training-job"},
        "ListTrialComponents": {},
    }
    found = {}
    for operation_name, params in questions.items():
        answer = await plane.call("sagemaker", operation_name, **params)
        operation = service("sagemaker").operation(operation_name, Protocol.JSON_1_1)
        found[operation_name] = json.loads(serialize(operation, answer, request_id="R").body)
    return found


def named(name):
    return {"Filters": [{"Name": "TrainingJobName", "Value": name}]}


async def told(plane, request):
    """Create a job, run every operation on it, and delete it; return the responses, or None if Create refuses."""
    name = f"job-{next(NUMBERS)}"
    request = {**request, "TrainingJobName": name}
    try:
        validate(create_operation(), request)
        await plane.call("sagemaker", "CreateTrainingJob", **request)
    except WireError as error:
        if error.http_status != BAD_REQUEST:
            raise
        return None
    found = await answers(plane, name)
    await end(plane, name)
    await plane.delete(name)
    return found


async def end(plane, name):
    await plane.stop(name)
    await plane.passes()


def damaged(request, path, value):
    """Return a copy of a request with another value at a path of member names and indices."""
    if not path:
        return value
    first, *rest = path
    copy = list(request) if isinstance(request, list) else dict(request)
    copy[first] = damaged(copy[first], rest, value)
    return copy


def places(value, prefix=()):
    """Yield the path of every value in a document."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield (*prefix, key)
        yield from places(item, (*prefix, key))


async def put_request(plane, name, request):
    """Write a request into the stored document of a job, as another release or a bad disk may have left it."""
    job = replace(await plane.job(name), request=request)
    statement = jobs.update().where(jobs.c.name == name).values(document=row_of(job)["document"])
    await plane.store._writer.run(lambda connection: connection.execute(statement))


def test_a_job_with_session_chaining_can_be_described(run, plane):
    found = run(told(plane, {**BASE, "SessionChainingConfig": {"EnableSessionTagChaining": True}}))
    assert found["DescribeTrainingJob"]["TrainingJobStatus"] == "InProgress"


@pytest.mark.parametrize("member", OPTIONAL)
def test_each_member_of_create_can_be_described_if_it_is_accepted(run, plane, member):
    run(told(plane, {**BASE, member: full_value(SHAPE.members[member])}))


def test_every_request_that_create_accepts_can_be_described(run, plane):
    accepted = []

    @TABLE
    @given(data=st.data())
    def tell(data):
        request = dict(BASE)
        for name in data.draw(st.lists(st.sampled_from(TELLABLE), max_size=3, unique=True)):
            request[name] = data.draw(values(SHAPE.members[name]), label=name)
        accepted.append(run(told(plane, request)) is not None)

    tell()
    assert sum(accepted) > len(accepted) / 4, f"{sum(accepted)} of {len(accepted)} requests were accepted"


@TABLE
@given(data=st.data())
def test_every_stored_record_is_described_or_reported_as_unreadable(run, plane, data):
    whole = {**BASE, **{name: full_value(SHAPE.members[name]) for name in OPTIONAL if name != "Tags"}}
    path = data.draw(st.sampled_from(sorted(places(whole), key=str)))
    request = damaged(whole, path, data.draw(json_values()))
    run(tell_stored(plane, {"MemberOfAnotherRelease": {"A": [1]}, **request}))


@pytest.mark.parametrize(
    ("member", "value"),
    [
        ("ResourceConfig", {"InstanceType": [], "InstanceCount": 1}),
        ("DebugRuleConfigurations", [{}]),
        ("AlgorithmSpecification", {"TrainingImage": 1}),
        ("HyperParameters", {"a": None, "b": 1}),
        ("VpcConfig", "none"),
    ],
)
def test_a_damaged_member_is_left_out_and_the_others_are_described(run, plane, member, value):
    found = run(tell_stored(plane, {**BASE, member: value}))
    assert found["DescribeTrainingJob"]["TrainingJobStatus"] == "Stopped"


async def tell_stored(plane, request):
    name = f"job-{next(NUMBERS)}"
    await plane.create(name)
    await end(plane, name)
    await put_request(plane, name, {**request, "TrainingJobName": name})
    try:
        return await answers(plane, name)
    except WireError as error:
        if "cannot be read and was set aside" not in error.message:
            raise
        return None


@pytest.mark.parametrize(
    ("kind", "word"), [(Kind.EXPERIMENT, "Experiment"), (Kind.TRIAL, "Trial"), (Kind.COMPONENT, "TrialComponent")]
)
def test_damaged_records_of_experiments_are_described_without_the_damaged_members(run, plane, kind, word):
    async def tell():
        await plane.call("sagemaker", "CreateExperiment", ExperimentName="e")
        await plane.call("sagemaker", "CreateTrial", TrialName="t", ExperimentName="e")
        await plane.call("sagemaker", "CreateTrialComponent", TrialComponentName="c")
        name = {"Experiment": "e", "Trial": "t", "TrialComponent": "c"}[word]
        damaged = {"DisplayName": "good", "Description": 1, "Status": [], "Parameters": "x", "OfAnotherRelease": {}}
        await plane.store.experiments.change(kind, name, lambda thing: replace(thing, document=damaged))
        for operation_name, params in (
            (f"Describe{word}", {f"{word}Name": name}),
            (f"List{word}s", {}),
            ("Search", {"Resource": SEARCHED[word]}),
        ):
            answer = await plane.call("sagemaker", operation_name, **params)
            operation = service("sagemaker").operation(operation_name, Protocol.JSON_1_1)
            assert b'"good"' in serialize(operation, answer, request_id="R").body, operation_name

    run(tell())
