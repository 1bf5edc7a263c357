"""Each profiler rule fires on a run with exactly its problem, and is silent on three good runs."""

import random
from dataclasses import replace

import pytest
from profiled_runs import (
    MIB,
    PREPARING,
    RUNNING,
    STEP_MS,
    UPLOADING,
    noisy,
    run,
    run_with_pauses,
    steady_gpus,
    without_gpus,
)

from clary.control.profiling.measurements import HostShape, measurements_of
from clary.control.profiling.rule import NO_GPU
from clary.control.profiling.rules import RULES

GOOD = {"steady": steady_gpus, "pauses": run_with_pauses, "processors": without_gpus}
GPU_RULES = ("BatchSize", "CPUBottleneck", "GPUMemoryIncrease", "IOBottleneck", "LoadBalancing", "LowGPUUtilization")


@pytest.fixture(scope="module")
def good_runs():
    return {name: make() for name, make in GOOD.items()}


def low_gpu():
    return steady_gpus(**{"gpu-1/utilisation_percent": noisy(40, 10)})


def flickering_gpu():
    return steady_gpus(**{"gpu-1/utilisation_percent": lambda host, row: 0.0 if row % 5 == 0 else 97.0})


def starved_by_processors():
    return steady_gpus(
        **{
            "host/cpu_percent": lambda host, row: 790.0,
            "gpu-0/utilisation_percent": lambda host, row: 4.0 if row % 10 < 7 else 90.0,
        }
    )


def starved_by_disks():
    return steady_gpus(
        **{
            "machine/cpu_iowait_percent": lambda host, row: 600.0,
            "gpu-0/utilisation_percent": lambda host, row: 4.0 if row % 10 < 7 else 90.0,
        }
    )


def leaking_gpu():
    return steady_gpus(**{"gpu-0/memory_percent": lambda host, row: 40.0 if row < 2000 else 72.0})


def unbalanced_gpus():
    return steady_gpus(**{"gpu-1/utilisation_percent": noisy(25, 5)})


def small_batches():
    low = {f"gpu-{gpu}/{part}_percent": noisy(30, 4) for gpu in (0, 1) for part in ("utilisation", "memory")}
    return steady_gpus(**low)


def steps_with_outliers():
    return steady_gpus(**{"rank-1/step_s": lambda host, row: 3.0 if row % 150 == 149 else 0.25})


def means_that_hide_outliers():
    longest = {"rank-0/step_max_s": lambda host, row: 2.0 if row % 150 == 149 else 0.27}
    return steady_gpus(**longest)


def late_first_step():
    late = 30 * 60 * 1000 // STEP_MS
    columns = {"rank-0/step_s": lambda host, row: None if row < late else 0.2}
    return run(columns, rows=late + 100)


def no_step_at_all():
    return run({"rank-0/steps": lambda host, row: 0.0}, rows=30 * 60 * 1000 // STEP_MS, is_over=False)


def few_workers():
    waits = {f"rank-{rank}/data_wait_s": lambda host, row: 0.12 for rank in (0, 1)}
    return steady_gpus(**waits, **{f"rank-{rank}/num_processes": lambda host, row: 2.0 for rank in (0, 1)})


def many_workers():
    many = {f"rank-{rank}/num_processes": lambda host, row: 17.0 for rank in (0, 1)}
    return steady_gpus(**many, **{"host/cpu_percent": lambda host, row: 795.0})


BAD = [
    ("LowGPUUtilization", low_gpu, "gpu-1"),
    ("LowGPUUtilization", flickering_gpu, "gpu-1"),
    ("CPUBottleneck", starved_by_processors, "processors above 90 %"),
    ("IOBottleneck", starved_by_disks, "disks above 50 %"),
    ("GPUMemoryIncrease", leaking_gpu, "gpu-0"),
    ("LoadBalancing", unbalanced_gpus, "gpu-1"),
    ("BatchSize", small_batches, "windows"),
    ("StepOutlier", steps_with_outliers, "rank-1"),
    ("StepOutlier", means_that_hide_outliers, "rank-0"),
    ("MaxInitializationTime", late_first_step, "30.0 minutes"),
    ("MaxInitializationTime", no_step_at_all, "there was no step"),
    ("Dataloader", few_workers, "2 workers for 8 processors"),
    ("Dataloader", many_workers, "32 workers for 8 processors"),
]


@pytest.mark.parametrize(("name", "make", "words"), BAD, ids=[make.__name__ for _, make, _ in BAD])
def test_a_rule_fires_on_a_run_with_its_problem_and_names_the_place(name, make, words):
    verdict = RULES[name]().judge(make())
    assert verdict.has_issue, verdict
    assert words in verdict.detail
    assert verdict.num_violations > 0
    assert verdict.num_datapoints > 0
    assert verdict.figures


@pytest.mark.parametrize("good", GOOD)
@pytest.mark.parametrize("name", RULES)
def test_no_rule_fires_on_a_good_run(good_runs, name, good):
    verdict = RULES[name]().judge(good_runs[good])
    assert not verdict.has_issue, verdict.detail
    assert verdict.detail


def test_every_rule_except_the_usage_has_a_run_on_which_it_fires():
    assert {name for name, _, _ in BAD} == set(RULES) - {"OverallSystemUsage"}


@pytest.mark.parametrize("name", GPU_RULES)
def test_gpu_rules_report_only_that_there_is_no_gpu(good_runs, name):
    verdict = RULES[name]().judge(good_runs["processors"])
    assert (verdict.detail, verdict.was_judged, verdict.has_issue) == (NO_GPU, False, False)


@pytest.mark.parametrize("name", RULES)
def test_a_job_without_measurements_is_not_judged(name):
    nothing = measurements_of([], [HostShape(name="algo-1", num_cpus=2.0)], step_ms=1000, until_ms=0, is_over=True)
    verdict = RULES[name]().judge(nothing)
    assert not verdict.has_issue
    assert not verdict.was_judged


@pytest.mark.parametrize("name", ["LowGPUUtilization", "CPUBottleneck", "LoadBalancing", "GPUMemoryIncrease"])
def test_a_job_shorter_than_the_patience_is_not_judged(name):
    verdict = RULES[name]().judge(steady_gpus(rows=300))
    assert not verdict.was_judged
    assert "300 datapoints so far" in verdict.detail


def test_a_lack_of_disk_wait_measurements_is_reported_as_such():
    measured = steady_gpus()
    series = {key: points for key, points in measured.series.items() if key[1] != "machine/cpu_iowait_percent"}
    verdict = RULES["IOBottleneck"]().judge(replace(measured, series=series))
    assert (verdict.was_judged, verdict.detail) == (False, "how busy disks were was not measured")


def test_measurements_before_and_after_the_program_are_not_judged():
    phases = [PREPARING] * 2000 + [RUNNING] * 2000 + [UPLOADING] * 2000
    columns = {
        "host/phase": phases,
        "host/cpu_percent": lambda host, row: 300.0 if 2000 <= row < 4000 else 795.0,
        "gpu-0/utilisation_percent": lambda host, row: 95.0 if 2000 <= row < 4000 else 0.0,
    }
    measured = run(columns, rows=6000)
    for name in ("LowGPUUtilization", "CPUBottleneck"):
        verdict = RULES[name]().judge(measured)
        assert verdict.was_judged
        assert not verdict.has_issue, verdict.detail
    assert measured.began_ms == 2000 * STEP_MS


def test_rows_that_are_means_of_varying_steps_are_no_outliers():
    source = random.Random(5)
    rows = [[max(0.01, source.gauss(0.04, 0.015)) for _ in range(20)] for _ in range(400)]
    measured = run(
        {
            "rank-0/step_s": [sum(row) / len(row) for row in rows],
            "rank-0/step_max_s": [max(row) for row in rows],
            "rank-0/steps": [20.0 * number for number in range(400)],
        },
        rows=400,
    )
    assert not RULES["StepOutlier"]().judge(measured).has_issue


def test_rolled_up_points_count_as_many_rows():
    rolled = run({"gpu-0/utilisation_percent": noisy(30, 5)}, rows=200, count=600.0)
    verdict = RULES["LowGPUUtilization"]().judge(rolled)
    assert verdict.has_issue
    assert verdict.num_datapoints > 100_000


def test_parameters_set_the_limits_of_the_rules():
    measured = low_gpu()
    assert not RULES["LowGPUUtilization"](threshold_p95=30, threshold_p5=1).judge(measured).has_issue
    assert RULES["StepOutlier"](n_outliers=30).judge(steps_with_outliers()).has_issue is False
    assert RULES["MaxInitializationTime"](threshold=45).judge(late_first_step()).has_issue is False


def test_the_usage_of_a_host_has_percentiles_of_all_its_measurements(good_runs):
    verdict = RULES["OverallSystemUsage"]().judge(good_runs["steady"])
    own = verdict.figures["algo-2"]
    assert 80 <= own["network sent p50"] <= 120
    assert 88 <= own["GPU 1 p50"] <= 94
    assert own["processors greatest"] <= 420 / 8
    assert MIB == 1 << 20
