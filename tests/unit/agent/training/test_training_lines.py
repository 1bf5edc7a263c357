"""Lines of metrics files and of MLflow's folder: values with their steps; all other lines are left out."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clary.agent.training.file_kinds import FileKind, RunNames, folders_to_watch, place_of
from clary.agent.training.value_lines import of_json_line, of_mlflow_line


def line(**record):
    return json.dumps(record).encode()


def test_a_record_of_the_sdk_is_a_value_in_both_of_its_spellings():
    new = of_json_line(line(MetricName="loss", Value=0.5, Timestamp=1_700_000_000.25, Step=3))
    old = of_json_line(line(MetricName="loss", Value="0.5", Timestamp=1_700_000_000.25, IterationNumber=3))
    assert new == old
    assert new is not None
    assert (new.name, new.value, new.step, new.at_ms) == ("loss", 0.5, 3, 1_700_000_000_250)


@pytest.mark.parametrize(
    ("stamp", "at_ms"),
    [
        (1_700_000_000, 1_700_000_000_000),
        (1_700_000_000_123, 1_700_000_000_123),
        ("2023-11-14T22:13:20+00:00", 1_700_000_000_000),
        ("2023-11-14T22:13:20", 1_700_000_000_000),
    ],
)
def test_moments_are_read_in_seconds_milliseconds_and_iso_time(stamp, at_ms):
    found = of_json_line(line(MetricName="loss", Value=1, Timestamp=stamp))
    assert found is not None
    assert (found.at_ms, found.step) == (at_ms, None)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[1]",
        b"[" * 5000,
        line(MetricName="", Value=1, Timestamp=1),
        line(MetricName="x" * 256, Value=1, Timestamp=1),
        line(MetricName="a\0", Value=1, Timestamp=1),
        line(MetricName="\ud800", Value=1, Timestamp=1),
        line(MetricName="a", Value="much", Timestamp=1),
        line(MetricName="a", Value=True, Timestamp=1),
        line(MetricName="a", Value=1, Timestamp="soon"),
        line(MetricName="a", Value=1, Timestamp=-5),
        line(MetricName="a", Value=1),
        line(MetricName=5, Value=1, Timestamp=1),
    ],
)
def test_a_line_that_is_no_record_has_no_value(data):
    assert of_json_line(data) is None


@pytest.mark.parametrize("step", [10**400, -(10**400), 2**63, float("inf"), float("nan"), True, "7"])
def test_an_impossible_step_is_none(step):
    found = of_json_line(line(MetricName="a", Value=1, Timestamp=1, Step=step))
    assert (found.value, found.step) == (1.0, None)


def test_lines_of_mlflow_have_a_time_a_value_and_perhaps_a_step():
    found = of_mlflow_line(b"1700000000123 0.5 7", name="loss")
    assert found is not None
    assert (found.name, found.at_ms, found.value, found.step) == ("loss", 1_700_000_000_123, 0.5, 7)
    assert of_mlflow_line(b"1700000000123 nan 7", name="loss").value is None
    assert of_mlflow_line(b"1700000000123 1e3", name="loss").step is None
    for wrong in (b"", b"1", b"a b c", b"1 2 3 4", b"-5 1 1"):
        assert of_mlflow_line(wrong, name="loss") is None


@given(st.binary(max_size=200))
def test_hostile_lines_never_raise(data):
    of_json_line(data)
    of_mlflow_line(data, name="loss")


def test_files_are_known_by_their_paths():
    assert place_of("output/tensorboard/run/events.out.tfevents.1.algo-1").kind is FileKind.EVENTS
    assert place_of("output/metrics/sagemaker/12.json").kind is FileKind.JSON_LINES
    found = place_of("output/data/mlruns/0/0123456789ab/metrics/eval/loss")
    assert (found.kind, found.run, found.name) == (FileKind.MLFLOW, "01234567", "eval/loss")
    for other in (
        "output/data/model.bin",
        "output/data/12.json",
        "output/data/mlruns/0/meta.yaml",
        "output/data/mlruns/0/run/params/lr",
        "output/data/mlruns/.trash/run/metrics/loss",
    ):
        assert place_of(other) is None


def test_the_first_run_keeps_its_names_and_later_runs_get_a_prefix():
    names = RunNames()
    train = place_of("output/tensorboard/exp/train/events.out.tfevents.1")
    evaluation = place_of("output/tensorboard/exp/eval/events.out.tfevents.2")
    inner = place_of("output/tensorboard/exp/train/1700/events.out.tfevents.3")
    other = place_of("output/data/mlruns/0/0123456789ab/metrics/loss")
    assert names.name(train, "loss") == "loss"
    assert names.name(evaluation, "loss") == "eval/loss"
    assert names.name(inner, "loss") == "1700/loss"
    assert names.name(other, "loss") == "loss", "another kind of file counts its runs itself"
    assert names.name(train, "accuracy") == "accuracy"


def test_a_folder_within_another_is_walked_once():
    assert "output/tensorboard" not in folders_to_watch("output/tensorboard")
    assert "model/logs" in folders_to_watch("model/logs")
    assert folders_to_watch(None) == folders_to_watch("output/x")
