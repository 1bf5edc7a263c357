"""The choice among several preferred instance types of a job, and invalid preferences."""

import pytest

from clary.base.errors import WireError
from clary.control import instance_choice
from clary.control.jobs.job_request import JobRequest
from clary.testing.control_plane import request_of


def preferring(*preferences, spot=False, **members):
    return request_of(
        ResourceConfig={"InstancePreferences": list(preferences), **members}, EnableManagedSpotTraining=spot
    )


def preference(name, count=None):
    return {"InstanceType": name} if count is None else {"InstanceType": name, "InstanceCount": count}


@pytest.mark.parametrize(
    "request_",
    [
        request_of(),
        preferring(preference("a"), preference("b"), InstanceCount=2),
        preferring(preference("a", 1), preference("b", 2)),
    ],
)
def test_one_count_for_all_types_or_one_per_type_is_accepted(request_):
    instance_choice.check(request_)


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (preferring(preference("a", 1), InstanceType="b"), "ResourceConfig.InstancePreferences excludes InstanceType"),
        (preferring(preference("a", 1), spot=True), "ResourceConfig.InstancePreferences excludes EnableManagedSpot"),
        (
            preferring(preference("a", 1), preference("a", 2)),
            "An instance type stands once in InstancePreferences; 'a'",
        ),
        (preferring(preference("a")), "InstancePreferences needs InstanceCount"),
        (preferring(preference("a", 1), preference("b")), "InstancePreferences needs InstanceCount"),
        (preferring(preference("a", 1), InstanceCount=1), "InstancePreferences needs InstanceCount"),
    ],
)
def test_invalid_preferences_are_refused(request_, words):
    with pytest.raises(WireError) as error:
        instance_choice.check(request_)
    assert error.value.message.startswith(words)


def test_candidates_are_in_the_order_of_the_request():
    request = preferring(preference("a", 1), preference("b", 2))
    selected = [
        candidate["ResourceConfig"]["SelectedInstanceType"] for candidate in instance_choice.candidates(request)
    ]
    assert selected == ["a", "b"]
    assert list(instance_choice.candidates(request_of())) == [request_of()]


def test_a_selection_is_used_as_the_type_of_the_hosts():
    request = preferring(preference("a", 1), preference("b", 2))
    first, second = map(JobRequest, instance_choice.candidates(request))
    assert [(group.instance_type, group.instance_count) for group in first.instance_groups] == [("a", 1)]
    assert [(group.instance_type, group.instance_count) for group in second.instance_groups] == [("b", 2)]
    assert JobRequest(request).instance_groups == first.instance_groups
