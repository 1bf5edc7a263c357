"""Run public scripts for SageMaker's training libraries, changed in sizes and data alone, and print the outcomes.

    .venv/bin/python -m tools.run_public_scripts CHECKOUTS [--only WORD ...] [--way estimator|run] [--again]

CHECKOUTS holds the repositories that the tables of `tools/public_scripts/tables` name, with their history, bare or not:
`owner/name`, `owner+name` or `name`. Nothing of them is changed or kept. Each script runs two ways: as a job that SDK
v2's estimator submits to a service which is started for it, and by `clary run`. A notebook's cells are a client's, and
what needs several hosts runs as a job alone. One runs at a time, each with a deadline. Outcomes are kept in
.cache/public-scripts/outcomes.jsonl and printed as the tables of docs/public-scripts.md; a script that has one already
is run again with --again or --only alone.

Environments that the project does not have lie in .cache/public-scripts/environments;
`tools/public_scripts/make_environments.sh` makes them.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from tools.public_scripts import outcomes as told
from tools.public_scripts.checkouts import bring
from tools.public_scripts.here import WAY as HERE
from tools.public_scripts.here import run_here
from tools.public_scripts.jobs import WAY as JOB
from tools.public_scripts.jobs import Service, run_job
from tools.public_scripts.places import CLARY_PYTHON, ROOT, python_of
from tools.public_scripts.table import Script, read_tables

CACHE = ROOT / ".cache/public-scripts"
ENVIRONMENTS = CACHE / "environments"
DEADLINE_S = 180.0
MAKER_TIMEOUT_S = 120
WAYS = {"estimator": JOB, "run": HERE}


def main() -> int:
    """Run the scripts that the command line chooses; return 1 if one did not run to its end."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkouts", type=Path)
    parser.add_argument("--only", nargs="+", metavar="WORD", help="only scripts whose name holds one of these")
    parser.add_argument("--way", choices=WAYS, action="append", help="only this way")
    parser.add_argument("--again", action="store_true", help="run those too that have an outcome")
    parser.add_argument("--deadline", type=float, default=DEADLINE_S, metavar="S", help="of each run")
    parser.add_argument("--clary", type=Path, default=CLARY_PYTHON, help="interpreter that has Clary")
    parser.add_argument("--outcomes", type=Path, default=CACHE / "outcomes.jsonl")
    options = parser.parse_args()
    options.clary = options.clary.absolute()
    scripts = read_tables()
    chosen = [one for one in scripts if not options.only or any(word in one.name for word in options.only)]
    ways = [WAYS[way] for way in options.way or WAYS]
    found = told.read(options.outcomes)
    todo = [
        (script, way)
        for script in chosen
        for way in ways
        if (way == JOB or script.runs_here) and (options.again or options.only or (script.name, way) not in found)
    ]
    failed = 0
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # so that the service is ended
    with _service(todo, options.clary) as service:
        for script, way in todo:
            outcome = run_one(
                script,
                way,
                checkouts=options.checkouts,
                clary=options.clary,
                service=service,
                deadline_s=options.deadline,
            )
            found[script.name, way] = outcome
            told.write(options.outcomes, found.values())
            print(f"{script.name}, {way}: {outcome.result}, {outcome.seconds:.0f} s {outcome.reason}", flush=True)
            failed += outcome.result != told.RAN
    print(told.markdown(scripts, found, list(WAYS.values())))
    return 1 if failed else 0


def run_one(
    script: Script, way: str, *, checkouts: Path, clary: Path, service: Service | None, deadline_s: float
) -> told.Outcome:
    """Run one script one way, in new folders; its output stays in `said.txt` there."""
    scratch = CACHE / "runs" / script.name / way.replace(" ", "-")
    shutil.rmtree(scratch, ignore_errors=True)
    source, data = scratch / "source", scratch / "data"
    bring(checkouts, script, source)
    data.mkdir()
    python = python_of(script.environment, ENVIRONMENTS)
    maker = ROOT / "tools/public_scripts/makers.py"
    made = [(script.data, data), (script.beside, source), *((one, data / one) for one in script.buckets.values())]
    for name, place in made:
        if name:
            place.mkdir(exist_ok=True)
            subprocess.run([str(python), str(maker), name, str(place)], check=True, timeout=MAKER_TIMEOUT_S)
    folders = {"source": source, "data": data, "scratch": scratch / "run"}
    if way == HERE:
        return run_here(script, clary=clary, python=python, **folders, deadline_s=deadline_s)
    assert service is not None
    return run_job(script, service=service, **folders, deadline_s=deadline_s)


class _service:
    """The service, if anything needs one."""

    def __init__(self, todo: list[tuple[Script, str]], clary: Path) -> None:
        names = {script.environment for script, way in todo if way == JOB}
        self._service = Service(CACHE / "service", names, clary=clary, own=ENVIRONMENTS) if names else None

    def __enter__(self) -> Service | None:
        return self._service.__enter__() if self._service else None

    def __exit__(self, *error: object) -> None:
        if self._service:
            self._service.__exit__(*error)


if __name__ == "__main__":
    sys.exit(main())
