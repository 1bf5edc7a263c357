"""Rehearsals are run by a process, followed, ended and kept; a deleted rehearsal leaves no file, process or job."""

import asyncio
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from store_contract import make_job

from clary.base.errors import StoreError, WireError
from clary.base.plain import to_plain
from clary.base.processes import ProcessId
from clary.control.reconcile.desks.rehearsal_desk import LATE_S, MAX_RUNNING, RehearsalDesk
from clary.control.reconcile.desks.rehearsal_shelf import NUM_KEPT, KeptRehearsal, RehearsalShelf, RehearsalState
from clary.control.rehearsal.orders import RehearsalOrder
from clary.control.store.documents.document_folders import take_over
from clary.testing.control_plane import ControlPlane

LIMIT_S = 40.0
ORDER = RehearsalOrder(faults=("reclaim at step 3",), arguments=("--reclaim=step:3",))
# Accepts the arguments of `clary` and behaves as the name of the job tells it.
COMMAND = """
import json, os, sys, time
job = sys.argv[-1]
options = dict(word[2:].partition("=")[::2] for word in sys.argv[1:] if word.startswith("--"))
print("plan of", job, "in", os.environ["CLARY_HOME"], flush=True)
if job.startswith("lasts"):
    time.sleep(90)
if job.startswith("refused"):
    sys.exit("clary: no host can be had\\n")
if job.startswith("dies"):
    sys.exit(9)
verdict = {"verdict": "PASS", "reason": "as it was", "arguments": sys.argv[1:-1]}
open(options["certificate"], "w").write(json.dumps(verdict))
"""


@pytest.fixture
async def plane(tmp_path):
    async with ControlPlane.open(tmp_path) as plane:
        for name in ("passes", "refused", "dies", "lasts", "says", "fit", *(f"lasts-{n}" for n in range(MAX_RUNNING))):
            await plane.store.create_job(make_job(name), {})
        yield plane


@pytest.fixture
async def desk(plane, tmp_path):
    made = desk_of(plane, tmp_path)
    yield made
    await made.interrupt()


def desk_of(plane, home):
    script = home / "fake_clary.py"
    script.write_text(COMMAND)
    shelf = RehearsalShelf(plane.store.documents("rehearsals"), home / "rehearsals")
    return RehearsalDesk(shelf, plane.hub, plane.clock, home=home, grace_s=1.0, command=(sys.executable, str(script)))


async def until(look):
    """Poll until `look` returns a true value; return that value."""
    async with asyncio.timeout(LIMIT_S):
        while not (found := look()):
            await asyncio.sleep(0.02)
    return found


async def ended(desk, name, number=1):
    """Return a rehearsal once it has ended and its process and task are gone."""
    await until(lambda: not desk._runs)
    (found,) = [kept for kept in desk.of(name) if kept.number == number]
    assert found.is_over
    return found


async def process_of(desk, name):
    """Return the process that runs the newest rehearsal, once its output has begun."""
    await until(lambda: desk.shelf.lines(name, desk.of(name)[0].number))
    process = desk.of(name)[0].process
    assert process is not None
    return process


async def test_the_command_gets_the_order_and_the_names_of_its_jobs(desk, tmp_path):
    kept = await desk.start("passes", ORDER)
    assert (kept.number, kept.state) == (1, RehearsalState.RUNNING)
    over = await ended(desk, "passes")
    assert (over.state, over.verdict, over.reason) == (RehearsalState.CERTIFIED, "PASS", "as it was")
    suffix = kept.twin.rpartition("-")[2]
    assert (kept.twin, kept.rehearsal) == (f"passes-twin-{suffix}", f"passes-rehearsal-{suffix}")
    said = (await desk.shelf.certificate("passes", 1))["arguments"]
    assert said == ["rehearse", "--reclaim=step:3", f"--suffix={suffix}", "--certificate=certificate.json", "--"]
    assert desk.shelf.lines("passes", 1) == [f"plan of passes in {tmp_path}"]
    assert desk.role_of(kept.twin) == ("passes", 1, "twin")
    assert desk.role_of("passes") is None


@pytest.mark.parametrize(("name", "why"), [("refused", "no host can be had"), ("dies", "the command ended with 9")])
async def test_a_command_without_a_certificate_gives_a_reason(desk, name, why):
    await desk.start(name, ORDER)
    over = await ended(desk, name)
    assert (over.state, over.why) == (RehearsalState.FAILED, why)


async def test_a_missing_command_fails_only_the_rehearsal(plane, tmp_path):
    desk = RehearsalDesk(
        RehearsalShelf(plane.store.documents("rehearsals"), tmp_path),
        plane.hub,
        plane.clock,
        home=tmp_path,
        grace_s=1.0,
        command=("/nowhere/clary",),
    )
    await desk.start("passes", ORDER)
    over = await ended(desk, "passes")
    assert over.state is RehearsalState.FAILED
    assert "could not be started" in over.why


async def test_a_cancelled_rehearsal_leaves_no_process_and_no_job(desk, plane):
    kept = await desk.start("lasts", ORDER)
    process = await process_of(desk, "lasts")
    await plane.create(kept.twin)
    desk.cancel("lasts", 1)
    over = await ended(desk, "lasts")
    assert (over.state, over.process) == (RehearsalState.CANCELLED, None)
    assert not process.is_alive()
    assert (await plane.job(kept.twin)).status.value == "Stopped"
    with pytest.raises(WireError, match="rehearsal 1 of lasts is not under way"):
        desk.cancel("lasts", 1)


async def test_a_service_that_shuts_down_ends_rehearsals_and_accepts_no_more(desk, plane):
    kept = await desk.start("lasts", ORDER)
    process = await process_of(desk, "lasts")
    await plane.create(kept.rehearsal)
    await desk.interrupt()
    (over,) = desk.of("lasts")
    assert over.state is RehearsalState.INTERRUPTED
    assert "the service was stopped while it ran" in over.why
    assert not process.is_alive()
    assert (await plane.job(kept.rehearsal)).status.value == "Stopped"
    with pytest.raises(WireError, match="the service is shutting down"):
        await desk.start("passes", ORDER)


async def test_a_rehearsal_of_a_killed_service_is_ended_by_the_next_service(plane, tmp_path):
    before = desk_of(plane, tmp_path)
    left = await asyncio.create_subprocess_exec(sys.executable, "-c", "import time; time.sleep(90)")
    kept = KeptRehearsal(
        job="fit",
        number=4,
        state=RehearsalState.RUNNING,
        faults=("reclaim at step 3",),
        arguments=("--reclaim=step:3",),
        twin="fit-twin-ab",
        rehearsal="fit-rehearsal-ab",
        started_at=plane.clock.now(),
        process=ProcessId.of(left.pid),
    )
    await before.shelf.write(kept)
    await plane.create("fit-twin-ab")
    desk = desk_of(plane, tmp_path)
    await desk.load()
    (over,) = desk.of("fit")
    assert (over.state, over.number) == (RehearsalState.INTERRUPTED, 4)
    assert "the next one has stopped its jobs" in over.why
    await left.wait()
    assert (await plane.job("fit-twin-ab")).status.value == "Stopped"
    assert desk.role_of("fit-rehearsal-ab") == ("fit", 4, "rehearsal")
    again = desk_of(plane, tmp_path)
    await again.load()
    assert again.of("fit") == [over]
    assert (await again.start("fit", ORDER)).number == 5
    await ended(again, "fit", 5)


async def test_a_certificate_that_was_written_counts_though_the_service_was_killed(plane, tmp_path):
    desk = desk_of(plane, tmp_path)
    await desk.start("passes", ORDER)
    over = await ended(desk, "passes")
    await desk.shelf.write(replace(over, state=RehearsalState.RUNNING, verdict=""))
    await plane.store.documents("rehearsals").put(
        "passes", 1, {"certificate": None}
    )  # not yet copied when the service was killed
    again = desk_of(plane, tmp_path)
    await again.load()
    assert again.of("passes")[0].verdict == over.verdict == "PASS"
    assert (await again.shelf.certificate("passes", 1))["verdict"] == "PASS"


async def test_rehearsals_of_an_older_release_are_shown_with_their_output(plane, tmp_path):
    desk = desk_of(plane, tmp_path)
    await desk.start("passes", ORDER)
    over = await ended(desk, "passes")
    place, documents = desk.shelf.place("passes", 1), plane.store.documents("rehearsals")
    (place / "record.json").write_text(json.dumps(to_plain(over)))
    certificate = await desk.shelf.certificate("passes", 1)
    await documents.remove("passes")
    assert await take_over(tmp_path / "rehearsals", documents, first="record", keeps_files=True) == 1
    again = desk_of(plane, tmp_path)
    await again.load()
    assert again.of("passes") == [over]
    assert await again.shelf.certificate("passes", 1) == certificate
    assert again.shelf.lines("passes", 1) == desk.shelf.lines("passes", 1) != []


async def test_a_job_has_one_rehearsal_at_a_time_and_the_service_a_few(desk):
    for index in range(MAX_RUNNING):
        await desk.start(f"lasts-{index}", ORDER)
    with pytest.raises(WireError, match="rehearsal 1 of lasts-0 is under way"):
        await desk.start("lasts-0", ORDER)
    with pytest.raises(WireError, match=f"{MAX_RUNNING} rehearsals are under way, of lasts-0, lasts-1"):
        await desk.start("another", ORDER)


async def test_the_newest_rehearsals_are_kept_and_all_are_deleted_with_their_job(desk, plane, tmp_path):
    for number in range(1, NUM_KEPT + 1):
        desk.shelf.place("passes", number).mkdir(parents=True)
        await desk._keep(
            KeptRehearsal(
                job="passes",
                number=number,
                state=RehearsalState.FAILED,
                faults=(),
                arguments=(),
                twin=f"t{number}",
                rehearsal=f"r{number}",
                started_at=plane.clock.now(),
            )
        )
    await desk.start("passes", ORDER)
    await ended(desk, "passes", NUM_KEPT + 1)
    assert [kept.number for kept in desk.of("passes")] == list(range(NUM_KEPT + 1, 1, -1))
    assert not desk.shelf.place("passes", 1).exists()
    assert desk.role_of("t1") is None
    await desk.forget("passes")
    assert desk.of("passes") == []
    assert not (tmp_path / "rehearsals/passes").exists()


async def test_a_job_that_is_deleted_ends_its_rehearsal_first(desk, tmp_path):
    await desk.start("lasts", ORDER)
    process = await process_of(desk, "lasts")
    await desk.forget("lasts")
    await until(lambda: not desk._runs)
    assert not process.is_alive()
    assert desk.of("lasts") == []
    assert not (tmp_path / "rehearsals/lasts").exists()


async def test_a_job_that_is_deleted_while_its_rehearsal_is_cancelled_leaves_no_files(desk, tmp_path):
    await desk.start("lasts", ORDER)
    await process_of(desk, "lasts")
    desk.cancel("lasts", 1)
    await desk.forget("lasts")
    await until(lambda: not desk._runs)
    assert desk.of("lasts") == []
    assert not (tmp_path / "rehearsals/lasts").exists()


async def test_a_forgotten_rehearsal_that_the_database_cannot_remove_is_logged(desk, monkeypatch, caplog):
    async def refuse(job_name, number):
        raise StoreError("the database is away")

    await desk.start("lasts", ORDER)
    await process_of(desk, "lasts")
    monkeypatch.setattr(desk.shelf, "remove", refuse)
    await desk.forget("lasts")
    await until(lambda: not desk._runs)
    assert "rehearsal 1 of lasts, whose job was deleted, could not be removed" in caplog.text
    monkeypatch.undo()


async def test_an_argument_that_no_process_can_be_given_fails_only_the_rehearsal(desk):
    await desk.start("passes", RehearsalOrder(faults=(), arguments=("--step-regex=(\ud800)",)))
    over = await ended(desk, "passes")
    assert over.state is RehearsalState.FAILED
    assert "could not be started" in over.why


async def test_a_job_that_is_created_after_its_rehearsal_was_cancelled_is_stopped(desk, plane):
    kept = await desk.start("lasts", ORDER)
    await process_of(desk, "lasts")
    desk.cancel("lasts", 1)
    await ended(desk, "lasts")
    await plane.create(kept.rehearsal)  # requested before the process was killed, and carried out now
    async with asyncio.timeout(LIMIT_S):
        while (await plane.job(kept.rehearsal)).status.value != "Stopped":
            await asyncio.sleep(0.02)


async def test_the_next_service_stops_jobs_of_a_cancelled_rehearsal_but_no_later_namesake(plane, tmp_path):
    before = desk_of(plane, tmp_path)
    kept = await before.start("refused", ORDER)
    over = await ended(before, "refused")
    before._roles.clear()  # a service that was killed before it stopped the jobs
    await plane.create(kept.twin)
    desk = desk_of(plane, tmp_path)
    await desk.shelf.write(replace(over, state=RehearsalState.CANCELLED))
    await desk.load()
    assert (await plane.job(kept.twin)).status.value == "Stopped"
    plane.clock.advance(2 * LATE_S)
    await plane.create(kept.rehearsal)  # a later job of another user with the same name
    await desk_of(plane, tmp_path).load()
    assert (await plane.job(kept.rehearsal)).status.value == "InProgress"


async def test_a_certificate_of_a_lost_rehearsal_record_is_not_used_for_the_next_one(desk):
    place = desk.shelf.place("refused", 1)
    place.mkdir(parents=True)
    (place / "record.json").write_text("")
    (place / "certificate.json").write_text('{"verdict": "PASS"}')
    assert (await desk.start("refused", ORDER)).number == 1
    assert (await ended(desk, "refused")).state is RehearsalState.FAILED


async def test_output_of_programs_is_readable_in_any_locale(plane, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    command = (sys.executable, "-c", "print('\\u00fc \\udcff')")
    desk = replace(desk_of(plane, tmp_path), command=command)
    await desk.start("says", ORDER)
    await ended(desk, "says")
    assert desk.shelf.lines("says", 1) == ["\u00fc \\udcff"]


async def test_output_is_bounded_and_broken_files_are_ignored(plane, tmp_path):
    shelf = RehearsalShelf(plane.store.documents("rehearsals"), tmp_path)
    place = shelf.place("fit", 1)
    place.mkdir(parents=True)
    assert shelf.lines("fit", 1) == []
    (place / "output.txt").write_bytes(b"\xff" + b"x" * 200_000 + b"\nlast\n")
    assert shelf.lines("fit", 1)[-1] == "last"
    assert sum(map(len, shelf.lines("fit", 1))) <= 64 * 1024
    (place / "output.txt").write_text("".join(f"line {number}\n" for number in range(1000)))
    assert shelf.lines("fit", 1)[0] == "line 700"
    for text in ("", "[]", '{"verdict": 3}', '{"verdict"'):
        Path(place / "certificate.json").write_text(text)
        assert shelf.written("fit", 1) is None
    await plane.store.documents("rehearsals").put("fit", 1, {"record": {}})
    assert await shelf.read_all() == []
