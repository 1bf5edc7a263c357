"""Documents are reduced to the members of a structure, and the removed members are named."""

from datetime import UTC, datetime

from clary.control.wire.fitting import fit

REQUEST = "CreateTrainingJobRequest"
DESCRIPTION = "DescribeTrainingJobResponse"


def test_members_that_the_structure_lacks_are_left_out_and_named():
    found = fit(DESCRIPTION, {"TrainingJobName": "job", "SessionChainingConfig": {}, "Tags": []})
    assert found.document == {"TrainingJobName": "job"}
    assert found.left_out == ("SessionChainingConfig", "Tags")


def test_members_of_inner_structures_are_left_out_by_their_path():
    found = fit(REQUEST, {"VpcConfig": {"Subnets": ["a", 1], "New": 1}, "HyperParameters": {"a": 1, "b": "1"}})
    assert found.document == {"VpcConfig": {"Subnets": ["a"]}, "HyperParameters": {"b": "1"}}
    assert found.left_out == ("VpcConfig.Subnets[1]", "VpcConfig.New", "HyperParameters.a")


def test_values_of_other_types_are_left_out():
    wrong = {"ResourceConfig": "x", "EnableNetworkIsolation": "true", "InputDataConfig": {}, "Environment": []}
    found = fit(REQUEST, wrong)
    assert found.document == {}
    assert found.left_out == tuple(wrong)


def test_a_list_loses_structures_that_lack_a_required_member():
    rules = [{"RuleConfigurationName": "a", "RuleEvaluatorImage": "i"}, {"RuleEvaluatorImage": "i"}]
    found = fit(REQUEST, {"DebugRuleConfigurations": rules})
    assert found.document == {"DebugRuleConfigurations": rules[:1]}
    assert found.left_out == ("DebugRuleConfigurations[1]",)


def test_a_fitting_document_is_not_changed():
    request = {"TrainingJobName": "job", "ResourceConfig": {"InstanceCount": 2}, "Tags": [{"Key": "a", "Value": "b"}]}
    assert fit(REQUEST, request).document == request
    assert fit(REQUEST, request).left_out == ()
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    assert fit(DESCRIPTION, {"CreationTime": moment}).document == {"CreationTime": moment}


def test_absent_values_are_not_reported():
    found = fit(REQUEST, {"VpcConfig": None, "ResourceConfig": {"InstanceType": None}})
    assert found.document == {"ResourceConfig": {}}
    assert found.left_out == ()
