"""Contract of metric curves for every database of the store; run against SQLite and PostgreSQL.

A test class inherits `CurveContract` and `StoreContract`, which provides `store`.
"""

import math
import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from store_contract import START, make_job

from clary.control.jobs.training_job import FinalMetric
from clary.control.store.metric_values import metric_curves
from clary.control.store.store import Store


class CurveContract:
    """Tests of curves that need only a store on an empty database."""

    async def test_a_downsampled_curve_keeps_its_spikes(self, store: Store) -> None:
        await store.create_job(make_job("j"), {})
        values = [math.sin(number / 50) for number in range(1000)]
        values[123], values[777] = 50.0, -50.0
        await store.add_metrics(
            "j",
            [
                *(
                    FinalMetric(name="loss", value=value, at=START + timedelta(milliseconds=number * 10), step=number)
                    for number, value in enumerate(values)
                ),
                *(FinalMetric(name="few, odd", value=value, at=START) for value in (1.0, math.nan, math.inf)),
            ],
        )
        found = await store.curves.curves("j", names=None, num_points=100)
        assert list(found) == ["few, odd", "loss"]
        assert [point.value for point in found["few, odd"]] == [1.0, None, math.inf]
        loss = found["loss"]
        assert 50 <= len(loss) <= 100
        assert [point.at_ms for point in loss] == sorted(point.at_ms for point in loss)
        kept = [point.value for point in loss]
        assert (max(kept), min(kept)) == (50.0, -50.0)
        first_ms = int(START.timestamp() * 1000)
        assert (loss[0].at_ms, loss[-1].at_ms) == (first_ms, first_ms + 9990)
        assert list(await store.curves.curves("j", names=["loss", "nobody"], num_points=2000)) == ["loss"]
        whole = (await store.curves.curves("j", names=["loss"], num_points=2000))["loss"]
        assert [(point.value, point.step) for point in whole] == [(value, i) for i, value in enumerate(values)]
        assert await store.curves.curves("nobody", names=None, num_points=100) == {}

    async def test_a_downsampled_curve_of_falling_values_falls_and_ends_with_the_last_value(self, store: Store) -> None:
        await store.create_job(make_job("j"), {})
        moments = (START + timedelta(seconds=number) for number in range(1000))
        falling = [FinalMetric(name="loss", value=1000.0 - number, at=at) for number, at in enumerate(moments)]
        last = FinalMetric(name="loss", value=500.5, at=falling[-1].at)  # a jump, at the time of the value before
        await store.add_metrics("j", [*falling, last])
        for num_points in (2, 3, 50):
            points = (await store.curves.curves("j", names=["loss"], num_points=num_points))["loss"]
            assert len(points) <= num_points
            assert points[-1].value == 500.5
        values = [point.value for point in points[2:-3]]  # the first stretch has any order, the last has the jump
        assert values == sorted(values, reverse=True)

    async def test_a_curve_with_values_before_1970_keeps_to_the_number_of_points(self, store: Store) -> None:
        await store.create_job(make_job("j"), {})
        moments = [
            *(datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=number) for number in range(-50, 50)),
            datetime.min.replace(tzinfo=UTC),
            datetime.max.replace(tzinfo=UTC),
        ]
        await store.add_metrics("j", [FinalMetric(name="loss", value=float(n), at=at) for n, at in enumerate(moments)])
        for num_points in (2, 3, 4, 5, 50):
            points = (await store.curves.curves("j", names=["loss"], num_points=num_points))["loss"]
            assert 2 <= len(points) <= num_points
            assert points[-1].value == 101.0

    async def test_a_cached_curve_of_growing_metrics_equals_a_freshly_read_one(
        self, store: Store, database_url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Values arrive late, with equal times or as not-a-number; only new values are read."""
        chance = random.Random(7)
        await store.create_job(make_job("j"), {})
        read, looks = metric_curves._read_stretches, []

        def looked(connection: Any, cut: Any, *, after_id: int | None) -> Any:
            looks.append(after_id)
            return read(connection, cut, after_id=after_id)

        monkeypatch.setattr(metric_curves, "_read_stretches", looked)
        end_s = 0.0
        for size in (300, 1, 40, 40, 200, 3, 900, 1):
            values = []
            for _ in range(size):
                end_s += chance.choice((0.0, 0.5, 1.0))
                at_s = end_s if chance.random() < 0.8 else chance.uniform(0, end_s)
                value = math.nan if chance.random() < 0.1 else chance.gauss(0, 1)
                step = None if chance.random() < 0.2 else int(at_s)
                values.append(FinalMetric(name="loss", value=value, at=START + timedelta(seconds=at_s), step=step))
            await store.add_metrics("j", values)
            other = await Store.open(database_url)
            try:
                for num_points in (2, 20, 100):
                    mine = await store.curves.curves("j", names=None, num_points=num_points)
                    fresh = await other.curves.curves("j", names=None, num_points=num_points)
                    assert repr(mine) == repr(fresh)  # not-a-number is not equal to itself
                    assert len(mine["loss"]) <= num_points
            finally:
                await other.close()
        own = [after for after in looks if after is not None]
        assert len(own) >= 6  # fresh reads have no `after_id`
        looks.clear()
        assert len((await store.curves.curves("j", names=None, num_points=100))["loss"]) >= 60
        assert looks == []

    async def test_a_new_job_of_the_same_name_has_no_points_of_the_deleted_one(self, store: Store) -> None:
        moments = [START + timedelta(seconds=number) for number in range(200)]
        for value in (1.0, 2.0):
            await store.create_job(make_job("j"), {})
            await store.add_metrics("j", [FinalMetric(name="loss", value=value, at=at) for at in moments])
            found = await store.curves.curves("j", names=None, num_points=20)
            assert {point.value for point in found["loss"]} == {value}
            await store.delete_job("j")

    async def test_a_job_deleted_during_a_read_leaves_no_curve_in_the_cache(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await store.create_job(make_job("j"), {})
        moments = [START + timedelta(seconds=number) for number in range(200)]
        await store.add_metrics("j", [FinalMetric(name="loss", value=1.0, at=at) for at in moments])
        extents, seen = metric_curves._extents, {}

        def look(*asked: Any) -> Any:
            seen.update(extents(*asked))
            return seen

        monkeypatch.setattr(metric_curves, "_extents", look)
        assert len((await store.curves.curves("j", names=None, num_points=200))["loss"]) == 200  # too few to be thinned
        await store.delete_job("j")
        assert await store.curves.curves("j", names=None, num_points=20) == {"loss": []}
        assert store.curves._kept == {}

    async def test_the_least_recently_read_curves_are_evicted_from_the_cache(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(metric_curves, "MAX_KEPT", 30)
        await store.create_job(make_job("j"), {})
        moments = [START + timedelta(seconds=number) for number in range(100)]
        for name in ("a", "b", "c", "d"):
            await store.add_metrics("j", [FinalMetric(name=name, value=1.0, at=at) for at in moments])
        for names in (["a"], ["b"], ["a"], ["c"], ["d"]):
            await store.curves.curves("j", names=names, num_points=20)
        kept = store.curves._kept
        assert "d" in {cut.metric_name for cut in kept}
        assert sum(len(stretches) for stretches in kept.values()) == store.curves._num_kept <= 30

    async def test_names_are_found_by_their_beginning(self, store: Store) -> None:
        names = ["a", "a.", "a/", "a/b", "a/b/c", "a/\u00e4", "a/\U0010ffff", "a0", "A/x", "a_/x", "b/a/"]
        for job in ("i", "j"):
            await store.create_job(make_job(job), {})
        await store.add_metrics("j", [FinalMetric(name=name, value=1.0, at=START) for name in names * 3])
        await store.add_metrics("i", [FinalMetric(name=f"{name}+", value=1.0, at=START) for name in names])
        assert await store.curves.names("j", prefix="") == sorted(names)
        for prefix in ("a/", "a/b/", "none/", "A/", "a_/"):
            assert await store.curves.names("j", prefix=prefix) == sorted(n for n in names if n.startswith(prefix))
        assert await store.curves.names("nobody", prefix="") == []

    async def test_statistics_of_periods_are_those_of_their_values(self, store: Store) -> None:
        for job in ("i", "j"):
            await store.create_job(make_job(job), {})
        begin = datetime(1970, 1, 1, tzinfo=UTC)
        draw = random.Random(7)
        seconds = [draw.uniform(-300.0, 300.0) for _ in range(500)]
        values = [
            FinalMetric(name="loss", value=draw.choice([1.5, -2.0, 0.25, math.nan]), at=begin + timedelta(seconds=at))
            for at in seconds
        ]
        await store.add_metrics("j", values)
        await store.add_metrics("i", [FinalMetric(name="loss", value=100.0, at=begin)])
        for start_s, end_s, period_s in ((-300, 300, 60), (-61, 59, 60), (7, 8, 1), (-1000, 1000, 86400)):
            start, end = (begin + timedelta(seconds=second) for second in (start_s, end_s))
            expected: dict[int, list[float]] = {}
            for one in values:
                period = math.floor(one.at.timestamp()) // period_s * period_s
                if period >= start_s // period_s * period_s and one.at < end and not math.isnan(one.value):
                    expected.setdefault(period, []).append(one.value)
            found = await store.aggregates.by_period("j", "loss", start=start, end=end, period_s=period_s)
            assert {period: tuple(one) for period, one in found.items()} == {
                period: (min(numbers), max(numbers), sum(numbers), len(numbers)) for period, numbers in expected.items()
            }
        whole = {"start": begin, "end": begin + timedelta(seconds=1), "period_s": 1}
        endless = {"start": datetime.min.replace(tzinfo=UTC), "end": begin + timedelta(days=1), "period_s": 2**62}
        assert [one.greatest for one in (await store.aggregates.by_period("i", "loss", **endless)).values()] == [100.0]
        assert (await store.aggregates.by_period(None, "loss", **whole))[0].greatest == 100.0
        assert await store.aggregates.by_period("nobody", "loss", **whole) == {}

    @pytest.mark.parametrize(
        ("values", "total"),
        [
            ([1.5e308, 1.5e308, -1.0], math.inf),
            ([1.5e308, -1.0e308, 1.0], 0.5e308),
            ([math.inf, 1.0], math.inf),
            ([-math.inf, 1e300], -math.inf),
            ([math.inf, -math.inf], math.nan),
            ([5e-324, 5e-324], 1e-323),
        ],
    )
    async def test_sums_of_great_values_do_not_fail(self, store: Store, values: list[float], total: float) -> None:
        await store.create_job(make_job("j"), {})
        await store.add_metrics("j", [FinalMetric(name="loss", value=value, at=START) for value in values])
        span: dict[str, Any] = {"start": START, "end": START + timedelta(days=10_000), "period_s": 2**31 - 1}
        (found,) = (await store.aggregates.by_period("j", "loss", **span)).values()
        assert (found.least, found.greatest, found.num_values) == (min(values), max(values), len(values))
        assert found.total == pytest.approx(total, nan_ok=True)
