"""Injects a number of faults into a working service, and checks during and after the run that it keeps every promise.

Run: `python -m clary.testing.faults.fault_runner --seed 7 --faults 1000` (or `make faults SEED=7 FAULTS=1000`).
Progress and the table go to stderr, one JSON object per kind to stdout; the exit code is 1 if a fault caused a loss, a
duplicate or a hang. The same seed gives the same faults and the same jobs. `--journal` records the target and the
time of each fault that has struck.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Collection
from pathlib import Path
from typing import TextIO

from clary.testing.faults.fault_counts import RunResult
from clary.testing.faults.fault_plan import FaultKind, make_faults
from clary.testing.faults.fault_run import FaultRun, Say
from clary.testing.faults.fault_world import Abilities, FaultWorld, find_abilities

SPARE_PER_FAULT = 2  # some find no target


def possible_kinds(abilities: Abilities, database_url: str) -> tuple[FaultKind, ...]:
    """Return the kinds of faults that this machine and this database allow."""
    impossible = set()
    if not abilities.has_disks:
        impossible |= {FaultKind.FILL_HOME, FaultKind.FILL_HOSTS}
    if not abilities.compiler:
        impossible.add(FaultKind.JUMP_CLOCK)
    if database_url:
        # PostgreSQL's files are not under the state folder
        impossible |= {FaultKind.DELETE_DATABASE, FaultKind.LOSE_DATABASE}
    else:
        impossible |= {FaultKind.CUT_DATABASE, FaultKind.KILL_DATABASE}
    return tuple(kind for kind in FaultKind if kind not in impossible)


def run_faults(
    seed: int,
    num_faults: int,
    *,
    database_url: str = "",
    kinds: Collection[FaultKind] = tuple(FaultKind),
    python: str = sys.executable,
    say: Say = lambda text: print(text, file=sys.stderr, flush=True),
    journal: TextIO | None = None,
    keep_in: Path | None = None,
) -> RunResult:
    """Start a service, inject faults, and return the results.

    Args:
        seed: seed of faults and jobs.
        num_faults: number of faults that strike.
        database_url: empty for SQLite.
        kinds: kinds of the faults; kinds that the machine or the database does not allow are left out, and `say`
            receives the machine's reasons.
        python: interpreter of the training programs.
        say: receives the progress.
        journal: receives one JSON object for each fault that has struck.
        keep_in: folder that gets logs and records of the service if a promise was broken.
    """
    abilities = find_abilities()
    for reason in abilities.missing:
        say(reason)
    allowed = [kind for kind in possible_kinds(abilities, database_url) if kind in kinds]
    folder = Path(tempfile.mkdtemp(prefix="clary-faults-"))
    world = FaultWorld(folder, abilities=abilities, python=python, database_url=database_url)
    run = FaultRun(world, seed, say, journal)
    started_at_s = time.monotonic()
    try:
        world.open()
        faults = make_faults(seed, num_faults, allowed, num_spare=SPARE_PER_FAULT * num_faults)
        run.run(faults, num_faults)
        result = run.result(time.monotonic() - started_at_s)
        if not result.is_clean and keep_in is not None:
            _keep(world.home, keep_in)
    finally:
        world.close()
        shutil.rmtree(folder)
    return result


def _keep(home: Path, folder: Path) -> None:
    """Copy the logs and records of the service and its agents into a folder, to find the cause."""
    folder.mkdir(parents=True, exist_ok=True)
    logs = [home / "service.log", home / "run" / "seaweed.log", *home.glob("jobs/*/*/*.log")]
    for path in [
        *logs,
        *home.glob("jobs/*/*/*/agent.log"),
        *home.glob("jobs/*/*/engine.json*"),
        *home.glob("run/*.json"),
    ]:
        if path.is_file():
            target = folder / path.relative_to(home)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)


def main(arguments: list[str] | None = None) -> int:
    """Run the faults of the command line."""
    parser = argparse.ArgumentParser(prog="python -m clary.testing.faults.fault_runner", description=__doc__)
    parser.add_argument("--seed", type=int, default=int(time.time()) % 10**6, help="default: a new one, printed")
    parser.add_argument("--faults", type=int, default=1000)
    parser.add_argument("--database-url", default="", help="of a PostgreSQL that may be harmed; default is SQLite")
    parser.add_argument("--kinds", nargs="*", choices=[kind.value for kind in FaultKind], help="default: all")
    parser.add_argument("--python", default=sys.executable, help="interpreter of the training programs")
    parser.add_argument("--journal", type=argparse.FileType("w"), help="file for what each fault has met")
    parser.add_argument("--keep", type=Path, help="folder for the service's logs if a promise was broken")
    options = parser.parse_args(arguments)
    kinds = [FaultKind(kind) for kind in options.kinds] if options.kinds else tuple(FaultKind)
    # Treated like ctrl-c, so that started processes end and disks are unmounted.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    print(f"seed {options.seed}, {options.faults} faults", file=sys.stderr)
    result = run_faults(
        options.seed,
        options.faults,
        database_url=options.database_url,
        kinds=kinds,
        python=options.python,
        journal=options.journal,
        keep_in=options.keep,
    )
    print(result.json_lines(), flush=True)
    print(result.table(), file=sys.stderr)
    if result.is_clean:
        return 0
    print("broken:", *result.violations, sep="\n  ", file=sys.stderr)
    again = f"make faults SEED={options.seed} FAULTS={options.faults}"
    again += f" DATABASE_URL={options.database_url}" if options.database_url else ""
    again += f" FAULT_ARGS='--kinds {' '.join(options.kinds)}'" if options.kinds else ""
    print(f"once more: {again}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
