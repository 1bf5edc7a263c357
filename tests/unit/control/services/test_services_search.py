"""Search: filters compared with a simple oracle, and pages over records."""

import operator
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clary.base.errors import WireError
from clary.control.services.experiments.search_filters import check, matches, sort_value, values_at
from clary.testing.control_plane import ControlPlane
from clary.testing.wire_checks import answers_in_shape

NAMES = ("alpha", "beta", "gamma")
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
NUMBER_OPERATORS = {
    "Equals": operator.eq,
    "NotEquals": operator.ne,
    "GreaterThan": operator.gt,
    "GreaterThanOrEqualTo": operator.ge,
    "LessThan": operator.lt,
    "LessThanOrEqualTo": operator.le,
}

# The oracle: records are flat and hold only numbers, so that a filter is one comparison.

records = st.dictionaries(st.sampled_from(NAMES), st.integers(-3, 3))
number_filters = st.builds(
    lambda name, word, value: {"Name": name, "Operator": word, "Value": str(value)},
    st.sampled_from(NAMES),
    st.sampled_from(sorted(NUMBER_OPERATORS)),
    st.integers(-3, 3),
)
presence_filters = st.builds(
    lambda name, word: {"Name": name, "Operator": word},
    st.sampled_from(NAMES),
    st.sampled_from(["Exists", "NotExists"]),
)
filters = st.lists(number_filters | presence_filters, min_size=1, max_size=3)
leaves = st.fixed_dictionaries({"Filters": filters}, optional={"Operator": st.sampled_from(["And", "Or"])})
expressions = st.recursive(
    leaves,
    lambda inner: st.fixed_dictionaries(
        {"SubExpressions": st.lists(inner, min_size=1, max_size=3)},
        optional={"Operator": st.sampled_from(["And", "Or"]), "Filters": filters},
    ),
    max_leaves=4,
)


def holds(record, item):
    name, word = item["Name"], item["Operator"]
    if word in ("Exists", "NotExists"):
        return (name in record) == (word == "Exists")
    if name not in record:
        return word == "NotEquals"
    return NUMBER_OPERATORS[word](record[name], int(item["Value"]))


def oracle(record, expression):
    found = [holds(record, item) for item in expression.get("Filters", [])]
    found += [oracle(record, inner) for inner in expression.get("SubExpressions", [])]
    return any(found) if expression.get("Operator") == "Or" else all(found)


@given(records, expressions)
def test_an_expression_matches_exactly_if_the_oracle_matches(record, expression):
    assert matches(record, expression) == oracle(record, expression)


@given(records, expressions)
def test_depth_and_letter_case_of_a_property_make_no_difference(record, expression):
    def moved(inner):
        items = [{**item, "Name": f"PARAMS.{item['Name'].upper()}"} for item in inner.get("Filters", [])]
        return {
            **{key: value for key, value in inner.items() if key == "Operator"},
            **({"Filters": items} if items else {}),
            **(
                {"SubExpressions": [moved(sub) for sub in inner["SubExpressions"]]} if "SubExpressions" in inner else {}
            ),
        }

    deep = {"Params": {name: {"NumberValue": value} for name, value in record.items()}}
    assert matches(deep, moved(expression)) == oracle(record, expression)


@given(st.lists(st.fixed_dictionaries({"a": st.integers(0, 2), "b": st.integers(0, 2)}), max_size=4))
def test_all_nested_filters_apply_to_the_same_member(members):
    wanted = [{"Name": "List.a", "Value": "1"}, {"Name": "List.b", "Operator": "GreaterThan", "Value": "1"}]
    nested = {"NestedFilters": [{"NestedPropertyName": "List", "Filters": wanted}]}
    record = {"List": members}
    assert matches(record, nested) == any(item["a"] == 1 and item["b"] > 1 for item in members)
    anywhere = any(item["a"] == 1 for item in members) and any(item["b"] > 1 for item in members)
    assert matches(record, {"Filters": wanted}) == anywhere


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        ({"Name": "Tags.team", "Value": "red"}, True),
        ({"Name": "Tags.team", "Value": "blue"}, False),
        ({"Name": "Metrics.train:loss", "Operator": "LessThan", "Value": "0.5"}, True),
        ({"Name": "metrics.train:loss.max", "Operator": "GreaterThan", "Value": "8"}, True),
        ({"Name": "Metrics.a.b.Min", "Value": "3"}, True),
        ({"Name": "HyperParameters.lr", "Operator": "LessThanOrEqualTo", "Value": "0.1"}, True),
        ({"Name": "Name", "Operator": "Contains", "Value": "gi"}, True),
        ({"Name": "Name", "Operator": "Contains", "Value": "GI"}, False),
        ({"Name": "Name", "Operator": "In", "Value": "letters, digits"}, True),
        ({"Name": "Name", "Operator": "In", "Value": "letters"}, False),
        ({"Name": "Name", "Operator": "GreaterThan", "Value": "1"}, False),
        ({"Name": "IsSpot", "Value": "true"}, True),
        ({"Name": "CreationTime", "Operator": "GreaterThan", "Value": "2026-01-01T11:00:00Z"}, True),
        ({"Name": "CreationTime", "Operator": "LessThan", "Value": "2026-01-01T12:30:00"}, True),
        ({"Name": "CreationTime", "Value": "2026-01-01T13:00:00+01:00"}, True),
        ({"Name": "CreationTime", "Operator": "LessThan", "Value": "99999999999999999999"}, False),
        ({"Name": "Parents.TrialName", "Value": "second"}, True),
        ({"Name": "Parents.TrialName", "Operator": "NotEquals", "Value": "second"}, False),
        ({"Name": "Parents.Missing", "Operator": "NotExists"}, True),
    ],
)
def test_a_filter_reads_every_kind_of_value_in_records(item, expected):
    record = {
        "Name": "digits",
        "IsSpot": True,
        "CreationTime": NOON,
        "Tags": [{"Key": "team", "Value": "red"}, {"Key": "x", "Value": "y"}],
        "Metrics": [{"MetricName": "train:loss", "Last": 0.25, "Max": 9.0}, {"MetricName": "a.b", "Min": 3}],
        "HyperParameters": {"lr": "0.10"},
        "Parents": [{"TrialName": "first"}, {"TrialName": "second"}],
    }
    check({"Filters": [item]})
    assert matches(record, {"Filters": [item]}) is expected


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ({"Filters": [{"Name": "a", "Operator": "Exists", "Value": "1"}]}, "Exists takes no Value"),
        ({"Filters": [{"Name": "a", "Operator": "Equals"}]}, "Equals needs a Value"),
        ({"Filters": [{"Name": "a", "Operator": "LessThan", "Value": "soon"}]}, "compares numbers and ISO 8601 times"),
        (
            {"NestedFilters": [{"NestedPropertyName": "a", "Filters": [{"Name": "b.c", "Value": "1"}]}]},
            "must begin with a.",
        ),
    ],
)
def test_a_meaningless_expression_is_refused(expression, words):
    for wrapped in (expression, {"SubExpressions": [expression]}):
        with pytest.raises(WireError, match=words) as error:
            check(wrapped)
        assert error.value.code == "ValidationException"


def test_the_nesting_of_expressions_is_limited():
    expression = {"Filters": [{"Name": "a", "Value": "1"}]}
    for _ in range(4):
        expression = {"SubExpressions": [expression]}
    check(expression)
    with pytest.raises(WireError, match="deeper than 5 levels"):
        check({"SubExpressions": [expression]})


def test_records_sort_by_numbers_times_and_text():
    assert sort_value({"a": "3"}, "A") == (0, 3.0)
    assert sort_value({"a": NOON}, "a") == (0, NOON.timestamp())
    assert sort_value({"a": "x"}, "a") == (1, "x")
    assert sort_value({}, "a") is None
    assert list(values_at({"a": [[1, 2], 3]}, "a")) == [1, 2, 3]


# Search through the service


@pytest.fixture
async def plane(tmp_path):
    async with ControlPlane.open(tmp_path) as plane:
        answers_in_shape(plane)
        for experiment in ("e", "f"):
            await plane.call("sagemaker", "CreateExperiment", ExperimentName=experiment)
            await plane.call("sagemaker", "CreateTrial", TrialName=f"{experiment}-t", ExperimentName=experiment)
        for index, trial in enumerate(("e-t", "e-t", "f-t", None, "e-t")):
            plane.clock.advance(1)
            name = f"c{index}"
            await plane.call(
                "sagemaker",
                "CreateTrialComponent",
                TrialComponentName=name,
                Parameters={"lr": {"NumberValue": 10.0 - index}},
                Tags=[{"Key": "odd", "Value": str(index % 2 == 1)}],
            )
            if trial is not None:
                await plane.call("sagemaker", "AssociateTrialComponent", TrialComponentName=name, TrialName=trial)
            if index != 2:
                data = [{"MetricName": "acc", "Timestamp": plane.clock.now(), "Value": float(index % 3)}]
                await plane.call("sagemaker-metrics", "BatchPutMetrics", TrialComponentName=name, MetricData=data)
        yield plane


async def found(plane, *filters, resource="ExperimentTrialComponent", limit=100, **params):
    """Return the names of the found records, over all pages."""
    member, name = {
        "ExperimentTrialComponent": ("TrialComponent", "TrialComponentName"),
        "ExperimentTrial": ("Trial", "TrialName"),
        "Experiment": ("Experiment", "ExperimentName"),
        "TrainingJob": ("TrainingJob", "TrainingJobName"),
    }[resource]
    expression = {"SearchExpression": {"Filters": list(filters)}} if filters else {}
    names, token = [], {}
    for _ in range(50):
        answer = await plane.call(
            "sagemaker", "Search", Resource=resource, MaxResults=limit, **expression, **params, **token
        )
        names += [item[member][name] for item in answer["Results"]]
        if "NextToken" not in answer:
            assert answer["TotalHits"] == {"Value": len(names), "Relation": "EqualTo"}
            return names
        token = {"NextToken": answer["NextToken"]}
    raise AssertionError("the search does not end")


async def test_components_are_found_by_experiment_tag_parameter_and_metric(plane):
    assert await found(plane, {"Name": "Parents.ExperimentName", "Value": "e"}) == ["c4", "c1", "c0"], "newest first"
    assert await found(plane, {"Name": "Parents.TrialName", "Value": "f-t"}) == ["c2"]
    assert await found(plane, {"Name": "Tags.odd", "Value": "True"}) == ["c3", "c1"]
    assert await found(plane, {"Name": "Parameters.lr", "Operator": "GreaterThan", "Value": "8.5"}) == ["c1", "c0"]
    assert await found(plane, {"Name": "Metrics.acc.Max", "Value": "1"}) == ["c4", "c1"]
    assert await found(plane, {"Name": "TrialComponentName", "Value": "c3"}) == ["c3"]


async def test_visibility_conditions_leave_out_records_with_another_value_of_the_key(plane):
    odd = [{"Key": "Tags.odd", "Value": "True"}]
    assert await found(plane, VisibilityConditions=odd) == ["c3", "c1"]
    assert await found(plane, VisibilityConditions=[{"Key": "Tags.team", "Value": "a"}]) == [
        "c4",
        "c3",
        "c2",
        "c1",
        "c0",
    ]
    assert await found(plane, VisibilityConditions=[*odd, {"Key": "Tags.odd", "Value": "False"}], limit=1) == []


@pytest.mark.parametrize("order", ["Ascending", "Descending"])
@pytest.mark.parametrize("limit", [1, 2, 100])
async def test_pages_are_sorted_by_a_metric_and_records_without_it_are_last(plane, order, limit):
    names = await found(plane, SortBy="metrics.acc.max", SortOrder=order, limit=limit)
    # acc: c0 0, c1 1, c3 0, c4 1; c2 none
    assert names == (["c0", "c3", "c1", "c4", "c2"] if order == "Ascending" else ["c4", "c1", "c3", "c0", "c2"])


async def test_a_record_that_is_created_between_two_pages_shifts_no_record(plane):
    asked = {"Resource": "ExperimentTrialComponent", "SortBy": "CreationTime", "SortOrder": "Descending"}
    first = await plane.call("sagemaker", "Search", MaxResults=2, **asked)
    plane.clock.advance(1)
    await plane.call("sagemaker", "CreateTrialComponent", TrialComponentName="new")
    second = await plane.call("sagemaker", "Search", MaxResults=2, NextToken=first["NextToken"], **asked)
    assert [item["TrialComponent"]["TrialComponentName"] for item in second["Results"]] == ["c2", "c1"]
    with pytest.raises(WireError, match="Invalid NextToken"):
        await plane.call("sagemaker", "Search", NextToken=first["NextToken"], **{**asked, "SortOrder": "Ascending"})


async def test_experiments_and_trials_are_found_too(plane):
    assert sorted(await found(plane, resource="Experiment")) == ["e", "f"]
    assert await found(plane, {"Name": "ExperimentName", "Value": "f"}, resource="ExperimentTrial") == ["f-t"]
    answer = await plane.call("sagemaker", "Search", Resource="ExperimentTrial")
    trials = {item["Trial"]["TrialName"]: item["Trial"]["TrialComponentSummaries"] for item in answer["Results"]}
    assert {item["TrialComponentName"] for item in trials["e-t"]} == {"c0", "c1", "c4"}
    assert (await plane.call("sagemaker", "Search", Resource="Endpoint"))["Results"] == []


async def test_training_jobs_are_found_by_status_hyperparameter_channel_and_final_metric(plane):
    channel = {
        "ChannelName": "train",
        "DataSource": {"S3DataSource": {"S3DataType": "S3Prefix", "S3Uri": "s3://b/digits"}},
    }
    await plane.create("one", HyperParameters={"lr": "0.1"}, InputDataConfig=[channel])
    await plane.create("two", HyperParameters={"lr": "0.5"}, Tags=[{"Key": "team", "Value": "red"}])
    data = [{"MetricName": "acc", "Timestamp": plane.clock.now() + timedelta(seconds=1), "Value": 0.9}]
    await plane.call("sagemaker-metrics", "BatchPutMetrics", TrialComponentName="two-aws-training-job", MetricData=data)

    async def jobs(*filters, **params):
        return await found(plane, *filters, resource="TrainingJob", **params)

    assert await jobs(SortBy="TrainingJobName", SortOrder="Ascending") == ["one", "two"]
    assert await jobs({"Name": "TrainingJobStatus", "Value": "Completed"}) == []
    assert await jobs({"Name": "HyperParameters.lr", "Operator": "LessThan", "Value": "0.2"}) == ["one"]
    assert await jobs({"Name": "Metrics.acc", "Operator": "GreaterThan", "Value": "0.5"}) == ["two"]
    assert await jobs({"Name": "Tags.team", "Operator": "Exists"}) == ["two"]
    assert await jobs(VisibilityConditions=[{"Key": "Tags.team", "Value": "nobody"}]) == ["one"]
    uri = "InputDataConfig.DataSource.S3DataSource.S3Uri"
    nested = {
        "NestedPropertyName": "InputDataConfig",
        "Filters": [{"Name": uri, "Operator": "Contains", "Value": "dig"}],
    }
    answer = await plane.call(
        "sagemaker", "Search", Resource="TrainingJob", SearchExpression={"NestedFilters": [nested]}
    )
    assert [item["TrainingJob"]["TrainingJobName"] for item in answer["Results"]] == ["one"]


@pytest.mark.parametrize(
    ("params", "words"),
    [
        (
            {"SearchExpression": {"Filters": [{"Name": "TrainingJobStatsu", "Value": "x"}]}},
            "did you mean TrainingJobSt",
        ),
        ({"SearchExpression": {"Filters": [{"Name": "Bogus", "Operator": "NotExists"}]}}, "has no property 'Bogus'"),
        (
            {"SearchExpression": {"Filters": [{"Name": "ResourceConfig.Cooling", "Value": "x"}]}},
            "ResourceConfig.Cooling",
        ),
        ({"SearchExpression": {"Filters": [{"Name": "TrainingJobName.x", "Value": "x"}]}}, "'TrainingJobName.x'"),
        (
            {"SearchExpression": {"SubExpressions": [{"Filters": [{"Name": "Bogus", "Value": "x"}]}]}},
            "Invalid SearchExpression: TrainingJob has no property 'Bogus'",
        ),
        (
            {
                "SearchExpression": {
                    "NestedFilters": [
                        {"NestedPropertyName": "Nope", "Filters": [{"Name": "Nope.a", "Operator": "Exists"}]}
                    ]
                }
            },
            "has no property 'Nope'",
        ),
        ({"SortBy": "CreationTme"}, "Invalid SortBy: TrainingJob has no property 'CreationTme'; did you mean Creation"),
        ({"VisibilityConditions": [{"Key": "team", "Value": "a"}]}, "Key must be Tags.<key>, got 'team'"),
    ],
)
async def test_a_property_that_no_record_can_have_is_refused(plane, params, words):
    with pytest.raises(WireError) as error:
        await plane.call("sagemaker", "Search", Resource="TrainingJob", **params)
    assert error.value.code == "ValidationException"
    assert words in error.value.message


@pytest.mark.parametrize("resource", ["TrainingJob", "ExperimentTrialComponent", "Experiment", "ExperimentTrial"])
async def test_every_member_of_a_found_record_can_be_used_in_a_search(plane, resource):
    await plane.create("job", HyperParameters={"a.b": "1"}, Tags=[{"Key": "team", "Value": "red"}])
    answer = await plane.call("sagemaker", "Search", Resource=resource)
    (record, *_) = (next(iter(item.values())) for item in answer["Results"])
    names = [*record, "tags.any.thing", *(["Metrics.loss", "HyperParameters.a.b"] if resource == "TrainingJob" else [])]
    if resource == "ExperimentTrialComponent":
        names += ["Metrics.loss.Max", "Parameters.lr", "Parents.ExperimentName", "Source.SourceArn"]
    for name in names:
        expression = {"Filters": [{"Name": name, "Operator": "Exists"}]}
        await plane.call("sagemaker", "Search", Resource=resource, SearchExpression=expression, SortBy=name.upper())
