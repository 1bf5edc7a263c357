"""Windows that ProfilerConfig asks for, as the SDK writes it and in other forms."""

import json

import pytest

from clary.base.plain import from_plain, to_plain
from clary.contract.deep_profiles import DEFAULT_START_STEP, MAX_STEPS, MAX_WINDOW_S, ProfileRequest, Window, window_of


def config(text):
    return {"ProfilingParameters": {"DetailedProfilingConfig": text}}


@pytest.mark.parametrize(
    ("text", "window"),
    [
        ('{"StartStep": 6, "NumSteps": 3, }', Window(start_step=6, num_steps=3)),
        ('{"StartStep": 6, "NumSteps": 3}', Window(start_step=6, num_steps=3)),
        ('{"NumSteps": 3}', Window(start_step=DEFAULT_START_STEP, num_steps=3)),
        ("{}", Window(start_step=DEFAULT_START_STEP, num_steps=1)),
        ('{"StartStep": 0}', Window(start_step=0, num_steps=1)),
        ('{"StartStep": 1, "NumSteps": 1000000}', Window(start_step=1, num_steps=MAX_STEPS)),
        (
            '{"StartTimeInSecSinceEpoch": 1700000000, "Duration": 1000, }',
            Window(start_step=None, num_steps=0, start_at=1_700_000_000, duration_s=MAX_WINDOW_S),
        ),
    ],
)
def test_the_sdks_texts_are_windows(text, window):
    assert window_of(config(text)) == window


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "null",
        "7",
        '{"StartStep": "x"}',
        '{"NumSteps": [1]}',
        '{"Duration": NaN}',
        '{"Duration": -1}',
        '{"StartTimeInSecSinceEpoch": Infinity}',
        "{",
        "[" * 100_000,
    ],
)
def test_what_cannot_be_read_asks_for_nothing(text):
    assert window_of(config(text)) is None


def test_nothing_is_asked_for_without_a_detailed_configuration_or_with_the_profiler_off():
    assert window_of(None) is None
    assert window_of({"S3OutputPath": "s3://b"}) is None
    assert window_of({"ProfilingParameters": {"PythonProfilingConfig": "{}"}}) is None
    assert window_of({**config("{}"), "DisableProfiler": True}) is None


def test_a_request_comes_back_from_its_file_as_it_was():
    request = ProfileRequest(number=3, num_steps=2, start_step=None, start_at=1.5, ranks=(0, 3))
    assert from_plain(ProfileRequest, json.loads(json.dumps(to_plain(request)))) == request
