"""The interval of a host's measurements: the setting, the job's own value, and the lower limit."""

from __future__ import annotations

import pytest

from clary.control.jobs.job_request import JobRequest
from clary.control.reconcile.planning import LEAST_INTERVAL_S, UNPROFILED_INTERVAL_S, metrics_interval_s
from clary.control.settings import Settings, load_settings


def interval_s(profiler: dict[str, object] | None, **settings: float) -> float:
    request = {} if profiler is None else {"ProfilerConfig": profiler}
    return metrics_interval_s(JobRequest(request), Settings(**settings))


@pytest.mark.parametrize(
    ("profiler", "setting", "expected"),
    [
        (None, 0.5, 0.5),
        ({"S3OutputPath": "s3://bucket/", "DisableProfiler": False}, 0.5, 0.5),
        ({"ProfilingIntervalInMilliseconds": 100}, 0.5, 0.1),
        ({"ProfilingIntervalInMilliseconds": 60_000}, 0.5, 60.0),
        ({"ProfilingIntervalInMilliseconds": 200}, 10.0, 0.2),
        ({"DisableProfiler": True}, 0.5, UNPROFILED_INTERVAL_S),
        ({"DisableProfiler": True, "ProfilingIntervalInMilliseconds": 100}, 0.5, UNPROFILED_INTERVAL_S),
        ({"DisableProfiler": True}, 30.0, 30.0),
        (None, 0.01, LEAST_INTERVAL_S),
        ({"ProfilingIntervalInMilliseconds": 1}, 0.5, LEAST_INTERVAL_S),
        (None, 0.0, 0.0),
        ({"ProfilingIntervalInMilliseconds": 100}, 0.0, 0.0),
        ({"DisableProfiler": True}, 0.0, 0.0),
    ],
)
def test_the_job_s_interval_wins_over_the_setting_unless_either_is_off(profiler, setting, expected):
    assert interval_s(profiler, metrics_interval_s=setting) == expected


def test_the_setting_is_read_from_its_variable(tmp_path):
    assert load_settings({"CLARY_HOME": str(tmp_path)}).metrics_interval_s == 0.5
    assert load_settings({"CLARY_HOME": str(tmp_path), "CLARY_METRICS_INTERVAL_S": "2"}).metrics_interval_s == 2.0
