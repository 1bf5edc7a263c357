"""Profile windows that ProfilerConfig requests, in the SDK's form and in other forms."""

import json

import pytest

from clary.base.plain import from_plain, to_plain
from clary.contract.deep_profiles import (
    DEFAULT_START_STEP,
    MAX_STEPS,
    MAX_WINDOW_S,
    ProfileRequest,
    Window,
    window_of,
    window_problems,
)


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
def test_an_unreadable_configuration_requests_no_window(text):
    assert window_of(config(text)) is None


def test_no_window_without_a_detailed_configuration_or_with_the_profiler_off():
    assert window_of(None) is None
    assert window_of({"S3OutputPath": "s3://b"}) is None
    assert window_of({"ProfilingParameters": {"PythonProfilingConfig": "{}"}}) is None
    assert window_of({**config("{}"), "DisableProfiler": True}) is None


def test_a_request_survives_its_file_unchanged():
    request = ProfileRequest(number=3, num_steps=2, start_step=None, start_at=1.5, ranks=(0, 3))
    assert from_plain(ProfileRequest, json.loads(json.dumps(to_plain(request)))) == request


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("garbage", "DetailedProfilingConfig 'garbage' cannot be read, and no window is profiled: expected StartStep"),
        ("[]", "DetailedProfilingConfig '[]' cannot be read"),
        ("[" * 100_000, f"DetailedProfilingConfig '{'[' * 80}...' cannot be read"),
        ('{"StartStep": "x"}', "cannot be read"),
        ('{"Duration": -1}', "cannot be read"),
        ('{"StartStepp": 1}', "StartStepp has no effect: Duration, NumSteps, StartStep, StartTimeInSecSinceEpoch do"),
        ('{"Duration": 1, "StartStep": 3}', "StartStep has no effect beside a time"),
        ('{"NumSteps": 1000}', f"NumSteps is {MAX_STEPS}, since a window has 1 to {MAX_STEPS} steps"),
        ('{"Duration": 1000}', f"Duration is {MAX_WINDOW_S:g} s, since no window lasts longer"),
    ],
)
@pytest.mark.parametrize("is_off", [False, True])
def test_a_window_that_is_changed_or_ignored_gets_one_warning(text, words, is_off):
    (sentence,) = window_problems({**config(text), "DisableProfiler": is_off})
    assert words in sentence


def test_windows_that_are_used_unchanged_get_no_warning():
    for text in (
        "{}",
        '{"StartStep": 6, "NumSteps": 3, }',
        '{"StartTimeInSecSinceEpoch": 1700000000, "Duration": 5, }',
    ):
        assert window_problems(config(text)) == ()
    assert window_problems(None) == window_problems({"S3OutputPath": "s3://b/p"}) == ()
