"""A program's report on its progress, and the description that clients get of it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clary.contract.training_values import TrainingProgress
from clary.control.jobs.training_status import of_hosts, progress_facts, progress_info, read_status

AT = datetime(2026, 1, 1, tzinfo=UTC)
AT_MS = int(AT.timestamp() * 1000)


def status(percent=None, eta=None, **metrics):
    """A request as transformers' KubeflowCallback sends it: every value is text."""
    said = {"lastUpdatedTime": AT.isoformat()}
    if percent is not None:
        said["progressPercentage"] = percent
    if eta is not None:
        said["estimatedRemainingSeconds"] = eta
    if metrics:
        said["metrics"] = [{"name": name, "value": str(value)} for name, value in metrics.items()]
    return {"trainerStatus": said}


def test_a_training_is_followed_from_its_first_status_to_its_last():
    begin = read_status(status(0, total_steps=300), None, at_ms=AT_MS)
    assert (begin.progress.done, begin.progress.total, begin.metrics) == (0, 300, {})
    middle = read_status(
        status(50, 60, loss=0.5, current_step=150, total_steps=300, current_epoch=1.5), begin.progress, at_ms=AT_MS
    )
    assert (middle.progress.done, middle.progress.eta_s, middle.step) == (150, 60, 150)
    assert middle.metrics == {"loss": 0.5}
    assert progress_info(middle.progress) == {
        "CurrentEpoch": 2,
        "MaxEpoch": 3,
        "CurrentStep": 50,
        "TotalStepCountPerEpoch": 100,
    }
    end = read_status(status(100, 0, loss=0.25), middle.progress, at_ms=AT_MS)
    assert (end.progress.done, end.progress.total, end.step) == (300, 300, 300)
    assert (end.progress.epoch, end.progress.max_epoch, end.progress.step_in_epoch) == (3, 3, 100)


def test_a_status_with_a_percentage_alone_is_progress_in_percent():
    found = read_status(status(40), None, at_ms=AT_MS)
    assert (found.progress.done, found.progress.total, found.progress.unit) == (40, 100, "percent")
    assert progress_info(found.progress)["TotalStepCountPerEpoch"] == 100


@pytest.mark.parametrize("document", [None, [], "x", {}, {"trainerStatus": 5}, {"trainerStatus": []}])
def test_a_document_without_a_status_gives_none(document):
    assert read_status(document, None, at_ms=AT_MS) is None


@pytest.mark.parametrize(
    "said",
    [
        {"metrics": "x"},
        {"metrics": [1, {}, {"name": 5, "value": "1"}, {"name": "a\n", "value": "1"}, {"name": "b", "value": []}]},
        {"progressPercentage": "nan"},
        {"progressPercentage": True, "estimatedRemainingSeconds": 1e300},
        {"metrics": [{"name": "total_steps", "value": "inf"}, {"name": "current_step", "value": "nan"}]},
    ],
)
def test_hostile_members_of_a_status_are_ignored(said):
    found = read_status({"trainerStatus": said}, None, at_ms=AT_MS)
    assert found.metrics == {}
    assert found.progress is None


@pytest.mark.parametrize("epoch", ["1e308", "-1e308", "1e300", "nan", "inf", "1e-320"])
def test_an_epoch_that_no_training_has_is_ignored(epoch):
    found = read_status(status(5, total_steps=1e12, current_step=1, current_epoch=epoch), None, at_ms=AT_MS)
    assert (found.progress.done, found.progress.total, found.progress.max_epoch) == (1, 1e12, None)
    found = read_status(status(1e-320, current_epoch=0.3), None, at_ms=AT_MS)
    assert (found.progress.done, found.progress.unit, found.progress.max_epoch) == (1e-320, "percent", None)


_JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=10,
)
_STATUS = st.fixed_dictionaries(
    {},
    optional={
        "progressPercentage": _JSON,
        "estimatedRemainingSeconds": _JSON,
        "metrics": st.lists(
            st.fixed_dictionaries(
                {"name": st.sampled_from(["current_step", "total_steps", "current_epoch", "loss"]), "value": _JSON}
            )
        )
        | _JSON,
    },
)


@given(_STATUS)
def test_any_json_as_a_status_gives_progress_within_bounds(said):
    found = read_status({"trainerStatus": said}, None, at_ms=AT_MS)
    if found.progress is not None:
        assert 0 <= found.progress.percent <= 100
        info = progress_info(found.progress)
        assert all(number >= 0 for number in info.values())
        progress_facts(found.progress, now=AT, is_over=False)


def test_the_remaining_time_falls_until_the_next_status_and_is_none_at_the_end():
    progress = TrainingProgress(done=5, total=10, at_ms=AT_MS, eta_s=60.0)
    assert progress_facts(progress, now=AT + timedelta(seconds=20), is_over=False)["eta_s"] == 40.0
    assert progress_facts(progress, now=AT + timedelta(seconds=90), is_over=False)["eta_s"] == 0.0
    assert progress_facts(progress, now=AT, is_over=True)["eta_s"] is None
    assert progress_facts(None, now=AT, is_over=False) is None


def test_the_job_uses_a_program_s_own_status_before_that_of_its_first_host():
    first, second = TrainingProgress(done=1, total=9), TrainingProgress(done=2, total=9)
    own = TrainingProgress(done=3, total=9, source="kubeflow")
    assert of_hosts({}, ["algo-1"]) is None
    assert of_hosts({"algo-2": second, "algo-1": first}, ["algo-1", "algo-2"]) is first
    assert of_hosts({"algo-2": own, "algo-1": first}, ["algo-1", "algo-2"]) is own


def test_steps_without_epochs_belong_to_a_single_epoch():
    assert progress_info(TrainingProgress(done=5, total=10)) == {
        "CurrentEpoch": 1,
        "MaxEpoch": 1,
        "CurrentStep": 5,
        "TotalStepCountPerEpoch": 10,
    }
    assert progress_info(TrainingProgress(done=5)) is None
