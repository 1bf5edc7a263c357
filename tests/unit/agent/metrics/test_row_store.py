"""Rows wait for the service in order, with numbers; the oldest rows are dropped when there are too many."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from clary.agent.metrics import row_store
from clary.agent.metrics.row_store import RowStore
from clary.contract.metric_samples import MAX_COLUMNS, MAX_ROWS, SERIES_NAME


def filled(num_rows: int, **bounds: float) -> RowStore:
    store = RowStore(**bounds)
    for number in range(num_rows):
        store.add(1000 + number, {"host/cpu_percent": float(number)})
    return store


def test_a_batch_has_columns_and_the_number_of_its_first_row():
    store = filled(3)
    store.acknowledge(1)
    batch = store.batch()
    assert batch.first_row == 1
    assert batch.at_ms == (1001, 1002)
    assert batch.names == ("host/cpu_percent",)
    assert batch.columns == ((1.0, 2.0),)
    assert batch.num_dropped == 0


def test_there_is_no_batch_without_rows():
    assert RowStore().batch() is None


def test_a_series_that_begins_later_has_no_earlier_values():
    store = RowStore()
    store.add(1, {"host/cpu_percent": 1.0})
    store.add(2, {"host/cpu_percent": 2.0, "rank-0/cpu_percent": 3.0})
    store.add(3, {"rank-0/cpu_percent": 4.0})
    batch = store.batch()
    assert dict(zip(batch.names, batch.columns, strict=True)) == {
        "host/cpu_percent": (1.0, 2.0, None),
        "rank-0/cpu_percent": (None, 3.0, 4.0),
    }


def test_values_that_are_no_numbers_and_invalid_names_are_not_sent():
    store = RowStore()
    store.add(1, {"host/cpu_percent": math.nan, "host/memory_bytes": math.inf, "Host/CPU": 1.0})
    batch = store.batch()
    assert batch.names == ("host/cpu_percent", "host/memory_bytes")
    assert batch.columns == ((None,), (None,))


def test_one_batch_holds_no_more_rows_than_the_service_accepts():
    store = filled(MAX_ROWS + 5)
    assert len(store.batch().at_ms) == MAX_ROWS
    wide = RowStore()
    wide.add(1, {f"rank-{n}/cpu_percent": 1.0 for n in range(MAX_COLUMNS + 9)})
    assert len(wide.batch().names) == MAX_COLUMNS
    heavy = RowStore()
    for number in range(1000):
        heavy.add(number, {f"rank-{n}/cpu_percent": 1.0 for n in range(200)})
    assert len(heavy.batch().at_ms) == row_store.MAX_BATCH_VALUES // 200


def test_surplus_rows_are_dropped_oldest_first_and_counted():
    store = filled(100, max_bytes=10 * 208)
    batch = store.batch()
    assert (batch.first_row, len(batch.at_ms), batch.num_dropped) == (90, 10, 90)


def test_rows_that_are_too_old_are_dropped():
    store = filled(10, max_age_s=0.005)
    assert store.batch().first_row == 4
    assert store.num_dropped == 4


def test_rows_that_the_service_refuses_are_counted_as_dropped():
    store = filled(10)
    store.give_up(4)
    assert (store.first, store.num_dropped, store.end) == (4, 4, 10)


def test_an_acknowledgement_beyond_the_last_row_advances_the_numbers():
    store = filled(3)
    store.acknowledge(50)
    assert (store.first, store.end, store.batch()) == (50, 50, None)
    store.add(2000, {"host/cpu_percent": 1.0})
    assert store.batch().first_row == 50


def test_an_acknowledgement_that_moves_back_gets_the_rows_that_remain():
    store = filled(5)
    store.acknowledge(3)
    store.acknowledge(1)
    assert store.batch().first_row == 3


@given(
    st.lists(st.one_of(st.just("append"), st.tuples(st.sampled_from(["acknowledge", "give_up"]), st.integers(0, 60))))
)
def test_row_numbers_are_unique_and_each_row_is_kept_acknowledged_or_dropped(acts):
    store, num_appended, handed_out = RowStore(max_bytes=5 * 208), 0, {}
    for act in acts:
        if act == "append":
            number = store.end
            store.add(num_appended, {"host/cpu_percent": float(num_appended)})
            assert number not in handed_out
            handed_out[number] = float(num_appended)
            num_appended += 1
        else:
            getattr(store, act[0])(act[1])
        batch = store.batch()
        if batch is not None:
            assert batch.first_row == store.first
            assert len(batch.at_ms) <= 5
            assert batch.first_row + len(batch.at_ms) == store.end
            for place, value in enumerate(batch.columns[0]):
                assert handed_out[batch.first_row + place] == value
            assert all(SERIES_NAME.fullmatch(name) for name in batch.names)
    assert store.num_dropped <= num_appended
