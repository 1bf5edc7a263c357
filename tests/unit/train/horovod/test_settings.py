"""Environment variables of Horovod."""

from __future__ import annotations

import logging
import math

import pytest

from clary.train.horovod.settings import HorovodSettings, without_effect


def test_every_variable_is_read():
    settings = HorovodSettings.from_environment(
        {
            "HOROVOD_FUSION_THRESHOLD": "0",
            "HOROVOD_CYCLE_TIME": "2.5",
            "HOROVOD_CACHE_CAPACITY": "7",
            "HOROVOD_STALL_CHECK_TIME_SECONDS": "3",
            "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "9",
            "HOROVOD_GLOO_TIMEOUT_SECONDS": "11",
            "HOROVOD_TIMELINE": "/tmp/t.json",
            "HOROVOD_TIMELINE_MARK_CYCLES": "1",
            "HOROVOD_DYNAMIC_PROCESS_SETS": "1",
            "HOROVOD_GLOO_IFACE": "eth7",
            "HOROVOD_LOG_LEVEL": "DEBUG",
        }
    )
    assert settings == HorovodSettings(
        fusion_bytes=0,
        cycle_s=0.0025,
        cache_capacity=7,
        stall_warning_s=3,
        stall_limit_s=9,
        timeout_s=11,
        timeline="/tmp/t.json",
        marks_cycles=True,
        has_dynamic_sets=True,
        interface="eth7",
        log_level=logging.DEBUG,
    )


def test_unset_variables_have_defaults_and_a_limit_of_zero_means_no_limit():
    assert HorovodSettings.from_environment({}) == HorovodSettings()
    assert HorovodSettings.from_environment({"HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "0"}).stall_limit_s == math.inf
    assert HorovodSettings.from_environment({"HOROVOD_STALL_CHECK_DISABLE": "1"}).stall_warning_s == math.inf


@pytest.mark.parametrize("text", ["much", "-1", "inf"])
def test_a_value_that_is_not_a_number_is_refused_by_name(text):
    with pytest.raises(ValueError, match=f"HOROVOD_CYCLE_TIME is '{text}'"):
        HorovodSettings.from_environment({"HOROVOD_CYCLE_TIME": text})


def test_variables_without_effect_are_reported():
    assert without_effect({"HOROVOD_AUTOTUNE": "0"}) == ()
    (unknown,) = without_effect({"HOROVOD_OF_TOMORROW": "1", "HOROVOD_RANK": "1", "HOROVOD_CYCLE_TIME": "2"})
    assert unknown == "HOROVOD_OF_TOMORROW has no effect: nothing here reads it"
    (sentence,) = without_effect({"HOROVOD_AUTOTUNE": "1"})
    assert sentence.startswith("HOROVOD_AUTOTUNE has no effect: ")


def test_the_variable_of_elastic_programs_is_not_reported():
    assert without_effect({"HOROVOD_ELASTIC": "1"}) == ()


def test_an_unknown_log_level_is_refused_by_name():
    with pytest.raises(ValueError, match="HOROVOD_LOG_LEVEL is 'loud'; expected one of trace"):
        HorovodSettings.from_environment({"HOROVOD_LOG_LEVEL": "loud"})
