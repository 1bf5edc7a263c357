"""Metrics of batches of lines: new, doubtful and known ones, and the metrics that are missing in a time series."""

import math
from collections import Counter
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from clary.contract.agent_protocol import LogBatch, LogBlock, MetricValue
from clary.control.jobs.training_job import FinalMetric
from clary.control.reconcile.gateways.log_metrics import lacking, metrics_of

AT = datetime(2026, 1, 1, tzinfo=UTC)


def batch(*losses, first=0):
    """Return a batch with one line per loss; a line whose loss is not None has a metric."""
    blocks = [
        LogBlock(
            at_ms=0,
            text=f"line {number}",
            metrics=() if loss is None else (MetricValue(name="loss", value=loss, at=AT),),
        )
        for number, loss in enumerate(losses)
    ]
    return LogBatch(first_sequence=first, blocks=tuple(blocks))


def values(metrics):
    return [metric.value for metric in metrics]


def test_lines_are_new_doubtful_or_known():
    found = metrics_of(batch(1.0, None, 2.0, 3.0, 4.0, first=10), counted=11, stored_before=14)
    assert values(found.everything) == [1.0, 2.0, 3.0, 4.0]
    assert (values(found.doubtful), values(found.new)) == ([2.0, 3.0], [4.0])
    assert found.end_sequence == 15


METRICS = st.builds(
    FinalMetric,
    name=st.sampled_from(["loss", "accuracy"]),
    value=st.sampled_from([0.5, 1.0, math.inf, math.nan]),
    at=st.sampled_from([AT, AT + timedelta(microseconds=1)]),
    step=st.sampled_from([None, 1]),
)


def identities(metrics):
    return Counter((one.name, one.at, repr(one.value), one.step) for one in metrics)


@given(st.lists(METRICS, max_size=8), st.lists(METRICS, max_size=8))
def test_adding_the_lacking_metrics_gives_exactly_the_wanted_ones(wanted, stored):
    found = lacking(wanted, stored)
    before, after = identities(stored), identities([*stored, *found])
    assert after == before | identities(wanted)
    assert lacking(wanted, [*stored, *found]) == []
