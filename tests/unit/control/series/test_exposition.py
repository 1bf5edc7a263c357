"""The text format for Prometheus, parsed by Prometheus' own parser."""

import math

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from clary.control.series.exposition import COUNTER, Family, exposed_name, text_of


def parsed(*families):
    return {family.name: family for family in text_string_to_metric_families(text_of(families))}


def test_names_labels_and_values_survive_the_parser():
    family = Family(name="clary_x", help="What it is.")
    family.add(1.25, job="demo", host="algo-1")
    family.add(3e300, job="demo", host="algo-2")
    found = parsed(family)["clary_x"]
    assert (found.documentation, found.type) == ("What it is.", "gauge")
    assert [(sample.labels, sample.value) for sample in found.samples] == [
        ({"job": "demo", "host": "algo-1"}, 1.25),
        ({"job": "demo", "host": "algo-2"}, 3e300),
    ]


def test_counters_are_exposed_as_counters():
    family = Family(name="clary_restarts_total", help="h", kind=COUNTER)
    family.add(3)
    found = parsed(family)["clary_restarts"]
    assert (found.type, found.samples[0].value) == ("counter", 3.0)


@given(text=st.text(max_size=40), value=st.floats())
def test_any_label_and_any_value_survive(text, value):
    family = Family(name="clary_x", help=text)
    family.add(value, label=text)
    (sample,) = parsed(family)["clary_x"].samples
    assert sample.labels == {"label": text}
    assert sample.value == value or (math.isnan(sample.value) and math.isnan(value))


def test_series_of_hosts_gpus_and_ranks_have_different_names():
    assert exposed_name("host/cpu_percent") == ("clary_host_cpu_percent", {})
    assert exposed_name("gpu-0/power_w") == ("clary_gpu_power_w", {"gpu": "0"})
    assert exposed_name("rank-12/cpu_percent") == ("clary_rank_cpu_percent", {"rank": "12"})


def test_a_series_of_an_unknown_scope_gets_the_generic_name():
    for series in ("jobs/waiting", "job-1/restarts_total", "step/forward_ms", "rank/x", "host-1/x"):
        assert exposed_name(series) == ("clary_series", {"series": series})
