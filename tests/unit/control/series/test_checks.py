"""Batches that no host can have measured are refused with a message."""

from dataclasses import replace

import pytest

from clary.contract.metric_samples import MAX_COLUMNS, MAX_ROWS, SampleBatch
from clary.control.series.checks import MOST_AHEAD_MS, MOST_BEHIND_MS, complaint

NOW_MS = 1_767_225_600_000
GOOD = SampleBatch(
    first_row=3,
    at_ms=(NOW_MS - 500, NOW_MS, NOW_MS),
    names=("host/cpu_percent", "rank-0/memory_bytes"),
    columns=((1.0, None, 2.0), (None, None, 3.0)),
)


def names(count):
    return tuple(f"rank-{number}/x" for number in range(count))


@pytest.mark.parametrize(
    "batch",
    [
        GOOD,
        SampleBatch(first_row=0, at_ms=(), names=(), columns=()),
        SampleBatch(first_row=0, at_ms=(NOW_MS,) * MAX_ROWS, names=("a/b",), columns=((1.0,) * MAX_ROWS,)),
        SampleBatch(first_row=0, at_ms=(NOW_MS,), names=names(MAX_COLUMNS), columns=((1.0,),) * MAX_COLUMNS),
    ],
)
def test_a_valid_batch_gives_no_complaint(batch):
    assert complaint(batch, now_ms=NOW_MS) == ""


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"first_row": -1}, "first_row counts from 0"),
        ({"first_row": 2**60}, "first_row counts from 0"),
        ({"num_dropped": -1}, "num_dropped counts from 0"),
        ({"columns": ((1.0, None, 2.0),)}, "2 names, got 1 columns"),
        ({"columns": ((1.0,), (1.0, 2.0, 3.0))}, "has 1 values, expected one for each of 3 rows"),
        ({"names": ("host/x", "host/x")}, "named twice"),
        ({"names": ("host/x", "../etc/passwd")}, "SCOPE/QUANTITY"),
        ({"names": ("host/x", "host/x\n")}, "SCOPE/QUANTITY"),
        ({"at_ms": (NOW_MS, NOW_MS - 1, NOW_MS)}, "never fall"),
        ({"at_ms": (0, NOW_MS, NOW_MS)}, "set the host's clock"),
        ({"at_ms": (NOW_MS - MOST_BEHIND_MS - 1, NOW_MS, NOW_MS)}, "set the host's clock"),
        ({"at_ms": (NOW_MS, NOW_MS, NOW_MS + MOST_AHEAD_MS + 1)}, "set the host's clock"),
        ({"at_ms": (10**400,) * 3}, "set the host's clock"),
        ({"at_ms": (-(10**400),) * 3}, "set the host's clock"),
        ({"at_ms": (NOW_MS,) * (MAX_ROWS + 1)}, f"at most {MAX_ROWS} rows, got {MAX_ROWS + 1}"),
        ({"names": names(MAX_COLUMNS + 1)}, f"at most {MAX_COLUMNS} series, got {MAX_COLUMNS + 1}"),
    ],
)
def test_a_batch_that_no_host_can_have_measured_is_refused_with_a_message(changes, words):
    assert words in complaint(replace(GOOD, **changes), now_ms=NOW_MS)
