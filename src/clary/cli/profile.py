"""`clary profile JOB --steps 5`: how each rank spends the time of a few steps; `--last`: the newest profile."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from clary.base.errors import ClaryError, Fault
from clary.cli.connection import Connection, connect
from clary.cli.contexts import require_local
from clary.cli.moments import seconds
from clary.cli.output_files import make_folder
from clary.cli.patience import PatientConnection
from clary.cli.profile_words import profile_text, states_text
from clary.cli.terminal_text import draw_over
from clary.contract.deep_profiles import MAX_STEPS, MAX_WINDOW_S

WAIT_S = 420.0  # covers the wait for a step to begin, the longest window, and the reading of traces
_POLL_S = 0.4
_DEFAULT_STEPS = 5


def add_parser(commands: Any) -> None:
    """Declare the command."""
    parser = commands.add_parser("profile", help="where the time of a few training steps goes, on every rank")
    parser.add_argument("job", metavar="JOB", help="name of a training job")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--steps", type=int, default=None, metavar="N", help=f"steps to record, at most {MAX_STEPS}; 5")
    what.add_argument("--seconds", type=seconds, default=None, metavar="S", help=f"or a time, at most {MAX_WINDOW_S:g}")
    what.add_argument("--last", action="store_true", help="show the newest profile; take none")
    what.add_argument("--cancel", action="store_true", help="end the profile that is being taken; keep what there is")
    parser.add_argument("--ranks", type=_ranks, default=[], metavar="0,3", help="ranks to record; all")
    parser.add_argument("--output", type=Path, default=None, metavar="DIR", help="copy traces and summary there")
    parser.add_argument("--json", action="store_true", help="print all of it as JSON")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the profile; return 1 if a rank has no trace. Raises: ClaryError."""
    if options.last and options.ranks:
        raise ClaryError("--last shows the newest profile as it is: leave out --ranks", fault=Fault.USER)
    if options.cancel and (options.ranks or options.output is not None):
        option = "--ranks" if options.ranks else "--output"
        raise ClaryError(f"--cancel shows no profile: leave out {option}", fault=Fault.USER)
    service = connect()
    if options.output is not None:
        require_local(service.settings, "profile --output")  # the files are on the service's machine
        make_folder(options.output, "--output")
    if options.cancel:
        number = service.post_job_page(options.job, "profile", {"cancel": True})["number"]
        ended = f"profile {number} of {options.job} ends with the steps that run now"
        print(json.dumps({"job": options.job, "number": number}, indent=2) if options.json else ended)
        return 0
    page = service.job_page(options.job, "profile") if options.last else take(service, options)
    print(json.dumps(page, indent=2) if options.json else profile_text(page, machine=service.context), flush=True)
    if options.output is not None:
        _copy(page, options.output)
    ranks = (page.get("summary") or {}).get("ranks") or []
    return 0 if ranks and all("compute_share" in rank for rank in ranks) else 1


def take(service: Connection, options: argparse.Namespace) -> dict[str, Any]:
    """Request a profile and wait until it has been read; return its page.

    Raises: ClaryError if that takes longer than `WAIT_S`.
    """
    body: dict[str, Any] = {"ranks": options.ranks}
    if options.seconds is not None:
        body["seconds"] = options.seconds
    else:
        body["steps"] = _DEFAULT_STEPS if options.steps is None else options.steps
    number = service.post_job_page(options.job, "profile", body)["number"]
    progress = _Progress(options.job)
    end_s = time.monotonic() + WAIT_S
    patient = PatientConnection(service)
    try:
        while True:
            page = patient.job_page(options.job, "profile", {"number": number})
            if page["is_over"]:
                return page
            if time.monotonic() > end_s:
                missing = ", ".join(page["missing"]) or "nobody"
                raise ClaryError(
                    f"profile {number} of {options.job} is not complete after {WAIT_S:g} s "
                    f"({states_text(page['states'])}, missing: {missing}); later: clary profile {options.job} "
                    "--last",
                    fault=Fault.INFRASTRUCTURE,
                )
            progress.show(page)
            time.sleep(_POLL_S)
    finally:
        progress.end()


class _Progress:
    """A progress line on a terminal, overwritten in place."""

    def __init__(self, job: str) -> None:
        self._job = job
        self._is_on = sys.stderr.isatty()
        self._last = ""

    def show(self, page: dict[str, Any]) -> None:
        """Show the states of the ranks."""
        words = "reading traces" if not page["missing"] else states_text(page["states"])
        if self._is_on and words != self._last:
            draw_over(sys.stderr, f"{self._job}: {words}")
            self._last = words

    def end(self) -> None:
        """Remove the line."""
        if self._last:
            draw_over(sys.stderr, "")


def _ranks(text: str) -> list[int]:
    """Return `[0, 3]` for `0,3`."""
    try:
        ranks = [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        ranks = []
    if not ranks or min(ranks) < 0:
        raise argparse.ArgumentTypeError(f"ranks are numbers with commas between them (0,3), got {text!r}")
    return ranks


def _copy(page: dict[str, Any], output: Path) -> None:
    """Copy the service's files of a profile, which are on this machine."""
    try:
        for file in sorted(Path(page["folder"]).iterdir()):
            if not file.name.startswith("."):
                shutil.copyfile(file, output / file.name)
    except OSError as error:
        raise ClaryError(f"the profile could not be copied to {output}: {error}", fault=Fault.USER) from error
