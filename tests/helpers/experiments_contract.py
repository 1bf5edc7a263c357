"""Contract of experiments for every database of the store; run against SQLite and PostgreSQL.

A test class inherits `ExperimentsContract` and provides a `database_url` fixture: a fresh, empty database.
"""

import asyncio
import math
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from store_contract import make_job

from clary.control.jobs.training_job import FinalMetric
from clary.control.store.errors import BadToken
from clary.control.store.store import Store
from clary.control.store.tracking.associations import EdgeOrder, EdgeQuery
from clary.control.store.tracking.component_metrics import Owner
from clary.control.store.tracking.experiment_rows import (
    Association,
    Kind,
    Tracked,
    TrackedExists,
    TrackedInUse,
    TrackedNotFound,
)
from clary.control.store.tracking.experiments import TrackedQuery

START = datetime(2026, 1, 1, tzinfo=UTC)


def thing(name: str, kind: Kind = Kind.EXPERIMENT, *, age_s: int = 0, parent: str = "", source: str = "") -> Tracked:
    """Return a record created some seconds after `START`."""
    at = START + timedelta(seconds=age_s)
    arn = f"arn:{kind.value}/{name.lower()}"
    document = {"ArtifactType": "x"} if kind is Kind.ARTIFACT else {"When": at, "Deep": {"List": [at, 1]}}
    return Tracked(
        kind=kind, name=name, arn=arn, parent=parent, source=source, created_at=at, modified_at=at, document=document
    )


def value(number: float, *, second: int = 0, step: int | None = None, name: str = "loss") -> FinalMetric:
    return FinalMetric(name=name, value=number, at=START + timedelta(seconds=second), step=step)


def edge(source: str, destination: str, *, second: int = 0) -> Association:
    return Association(
        source_arn=source,
        destination_arn=destination,
        association_type="",
        source_type="A",
        destination_type="B",
        source_name="",
        destination_name="",
        created_at=START + timedelta(seconds=second),
    )


class ExperimentsContract:
    """Tests that need only the URL of an empty database."""

    @pytest.fixture
    async def store(self, database_url: str) -> AsyncIterator[Store]:
        store = await Store.open(database_url)
        yield store
        await store.close()

    async def _world(self, store: Store) -> None:
        """Store an experiment e with the trials t and u, and the components c0 to c4, those with even numbers in t."""
        await store.experiments.create(thing("e"), {})
        for name in ("t", "u"):
            await store.experiments.create(thing(name, Kind.TRIAL, parent="e"), {})
        for number in range(5):
            component = thing(f"c{number}", Kind.COMPONENT, age_s=number)
            await store.experiments.create(component, {}, trials=["t"] if number % 2 == 0 else [])

    async def test_a_record_is_read_back_unchanged_by_name_and_arn(self, store: Store) -> None:
        await store.experiments.create(thing("Name"), {"k": "v"})
        assert await store.experiments.get(Kind.EXPERIMENT, "nAME") == thing("Name")
        assert await store.experiments.get_by_arn("arn:experiment/name") == thing("Name")
        assert await store.experiments.get(Kind.TRIAL, "Name") is None
        assert await store.experiments.tags_of(["arn:experiment/name", "arn:none"]) == {
            "arn:experiment/name": {"k": "v"}
        }

    async def test_of_many_concurrent_creations_of_one_name_one_succeeds(self, store: Store) -> None:
        names = ["one", "One", "ONE", "oNe"]
        outcomes = await asyncio.gather(
            *(store.experiments.create(thing(name), {"who": name}) for name in names), return_exceptions=True
        )
        assert sum(outcome is None for outcome in outcomes) == 1
        assert sum(isinstance(outcome, TrackedExists) for outcome in outcomes) == 3
        winner = names[outcomes.index(None)]
        assert await store.experiments.tags_of(["arn:experiment/one"]) == {"arn:experiment/one": {"who": winner}}

    async def test_a_trial_without_its_experiment_is_refused_and_not_written(self, store: Store) -> None:
        with pytest.raises(TrackedNotFound):
            await store.experiments.create(thing("t", Kind.TRIAL, parent="none"), {})
        with pytest.raises(TrackedNotFound):
            await store.experiments.create(thing("c", Kind.COMPONENT), {}, trials=["none"])
        assert await store.experiments.get(Kind.COMPONENT, "c") is None

    async def test_concurrent_changes_are_all_kept(self, store: Store) -> None:
        await store.experiments.create(replace(thing("e"), document={"count": 0}), {})

        def add_one(found: Tracked) -> Tracked:
            return replace(found, document={"count": found.document["count"] + 1})

        await asyncio.gather(*(store.experiments.change(Kind.EXPERIMENT, "e", add_one) for _ in range(20)))
        found = await store.experiments.get(Kind.EXPERIMENT, "e")
        assert found is not None
        assert found.document == {"count": 20}

    @pytest.mark.parametrize("descending", [False, True])
    @pytest.mark.parametrize("by_name", [False, True])
    async def test_pages_hold_every_record_once(self, store: Store, descending: bool, by_name: bool) -> None:
        await self._world(store)
        for query, expected in (
            ({}, ["c0", "c1", "c2", "c3", "c4"]),
            ({"trial": "T"}, ["c0", "c2", "c4"]),
            ({"experiment": "E"}, ["c0", "c2", "c4"]),
            ({"created_after": START + timedelta(seconds=2)}, ["c3", "c4"]),
            ({"trial": "u"}, []),
        ):
            asked = TrackedQuery(kind=Kind.COMPONENT, by_name=by_name, descending=descending, **query)
            names: list[str] = []
            token = None
            for _ in range(10):
                page, token = await store.experiments.page(asked, max_results=2, next_token=token)
                names += [item.name for item in page]
                if token is None:
                    break
            assert names == (expected[::-1] if descending else expected)

    async def test_a_token_belongs_to_its_query(self, store: Store) -> None:
        await self._world(store)
        query = TrackedQuery(kind=Kind.COMPONENT)
        _, token = await store.experiments.page(query, max_results=1, next_token=None)
        with pytest.raises(BadToken):
            await store.experiments.page(replace(query, trial="t"), max_results=1, next_token=token)

    async def test_a_record_in_use_is_not_removed_and_a_removed_one_loses_its_values_and_edges(
        self, store: Store
    ) -> None:
        await self._world(store)
        experiments = store.experiments
        for kind, name in ((Kind.EXPERIMENT, "e"), (Kind.TRIAL, "t"), (Kind.COMPONENT, "c0")):
            with pytest.raises(TrackedInUse):
                await experiments.remove(kind, name)
        assert await experiments.values.add("c0", [value(1.0)])
        assert await experiments.lineage.add(edge("arn:experiment-trial-component/c0", "arn:x"))
        await experiments.part("t", "c0")
        await experiments.remove(Kind.COMPONENT, "C0")
        assert await experiments.values.summaries([Owner(name="c0")]) == {}
        assert (await experiments.lineage.page(EdgeQuery(), max_results=9, next_token=None))[0] == []
        with pytest.raises(TrackedNotFound):
            await experiments.part("t", "c0")
        assert not await experiments.values.add("c0", [value(1.0)])

    async def test_parents_of_many_components_are_read_in_one_call(self, store: Store) -> None:
        await self._world(store)
        await store.experiments.join("u", "c0", at=START + timedelta(hours=1))
        await store.experiments.join("u", "c0", at=START + timedelta(hours=2))
        found = await store.experiments.parents_of([f"C{number}" for number in range(1200)])
        trials = {key: [parent.trial for parent in parents] for key, parents in found.items()}
        assert trials == {"c0": ["t", "u"], "c2": ["t"], "c4": ["t"]}

    async def test_summaries_of_a_job_and_a_component_of_one_name_are_separate(self, store: Store) -> None:
        await store.experiments.create(thing("same", Kind.COMPONENT), {})
        await store.create_job(make_job("same"), {})
        await store.experiments.values.add("SAME", [value(1.0), value(3.0, second=1), value(math.nan, second=2)])
        await store.experiments.values.add("same", [value(9.0, name="other")])
        await store.add_metrics("same", [value(5.0)])
        of_job, of_component = Owner(name="same", of_job=True), Owner(name="same")
        found = await store.experiments.values.summaries([of_job, of_component])
        assert [(item.name, item.last, item.count) for item in found[of_job]] == [("loss", 5.0, 1)]
        loss, other = found[of_component]
        assert (loss.least, loss.greatest, loss.mean, loss.deviation, loss.last, loss.count) == (1, 3, 2, 1, 3, 2)
        assert (other.name, other.deviation) == ("other", 0.0)
        assert loss.last_at == START + timedelta(seconds=1)

    async def test_huge_and_infinite_values_are_summarised_too(self, store: Store) -> None:
        await store.experiments.create(thing("c", Kind.COMPONENT), {})
        await store.experiments.values.add("c", [value(math.inf), value(1e300, second=1), value(-1e300, second=2)])
        (found,) = (await store.experiments.values.summaries([Owner(name="c")]))[Owner(name="c")]
        assert (found.least, found.greatest, found.last, found.count) == (-1e300, math.inf, -1e300, 3)

    async def test_buckets_follow_steps_and_time(self, store: Store) -> None:
        await store.experiments.create(thing("c", Kind.COMPONENT), {})
        values = [value(float(step), second=30 * step, step=step // 2) for step in range(6)]
        await store.experiments.values.add("c", values)
        asked = {"start": None, "end": None, "limit": 100}
        by_step, is_cut = await store.experiments.values.buckets(Owner(name="c"), "loss", width_s=None, **asked)
        assert [(begin, item.mean, item.count) for begin, item in by_step] == [(0, 0.5, 2), (1, 2.5, 2), (2, 4.5, 2)]
        assert not is_cut
        by_time, _ = await store.experiments.values.buckets(Owner(name="c"), "loss", width_s=60, **asked)
        epoch = int(START.timestamp())
        assert [(begin - epoch, item.last) for begin, item in by_time] == [(0, 1), (60, 3), (120, 5)]
        bounded, _ = await store.experiments.values.buckets(
            Owner(name="c"), "loss", width_s=60, start=epoch + 30, end=epoch + 90, limit=100
        )
        assert [(begin - epoch, item.count) for begin, item in bounded] == [(0, 1), (60, 2)]

    @pytest.mark.parametrize("order", list(EdgeOrder))
    async def test_pages_of_edges_hold_every_edge_once(self, store: Store, order: EdgeOrder) -> None:
        edges = [edge(f"arn:{number % 3}", f"arn:{number}x", second=number // 2) for number in range(7)]
        for item in edges:
            assert await store.experiments.lineage.add(item)
            assert not await store.experiments.lineage.add(item)
        found: list[Association] = []
        token = None
        for _ in range(10):
            query = EdgeQuery(order=order, descending=False)
            page, token = await store.experiments.lineage.page(query, max_results=2, next_token=token)
            found += page
            if token is None:
                break
        keyed = sorted(edges, key=lambda item: (getattr(item, order.value), item.source_arn, item.destination_arn))
        assert found == keyed
        assert await store.experiments.lineage.remove("arn:0", "arn:0x")
        assert not await store.experiments.lineage.remove("arn:0", "arn:0x")
