"""`clary rehearse JOB`: run the job with faults and a twin without faults, and certify how the job resumes.

Exit codes: 0 PASS, 1 FAIL, 3 INCONCLUSIVE; 2 for an impossible rehearsal, reported before anything starts; 73 if the
file of `--certificate` could not be written at the end, after the certificate was printed; 124 for a job that does not
end within --timeout. After other errors: as `main`.
"""

from __future__ import annotations

import argparse
import json
import re
import secrets
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from clary.base.errors import ClaryError, ContractError, Fault
from clary.base.plain import to_plain
from clary.cli.certificate_words import certificate_text
from clary.cli.connection import connect
from clary.cli.moments import seconds
from clary.cli.output_files import EXIT_UNWRITTEN, check_file, write_file
from clary.cli.patience import Creation, PatientConnection
from clary.cli.rehearsal_run import JobOverdue, JobWatch, follow
from clary.cli.tables import json_text
from clary.cli.wait import EXIT_TIMEOUT
from clary.contract.rehearsals import disks_value
from clary.control.rehearsal import disks
from clary.control.rehearsal.certificate import COMPLETED, Run, Verdict, certify
from clary.control.rehearsal.curves import curves_of
from clary.control.rehearsal.faults import FaultKind, PlannedFault, check_hosts, draw_faults, parse_fault, settle
from clary.control.rehearsal.history import scale_of
from clary.control.rehearsal.readings import make_reader
from clary.control.rehearsal.requests import host_names, rehearsal_requests

EXIT_CODES = {Verdict.PASS: 0, Verdict.FAIL: 1, Verdict.INCONCLUSIVE: 3}
SUFFIX_BYTES = 2  # in hexadecimal: twin-1f3c
DEFAULT_TIMEOUT_S = 86400.0
HELP = {
    FaultKind.RECLAIM: ("[HOST@]WHEN", "take spot capacity back: step:120 or @30s"),
    FaultKind.KILL: ("HOST@WHEN", "kill everything on a host at once: algo-2@180s, algo-2@step:120"),
    FaultKind.KILL_RANK: ("RANK@WHEN", "kill one rank's process"),
    FaultKind.PARTITION: (
        "HOST[,HOST]@WHEN[+D]",
        "cut hosts off the job's network, for a time: algo-2@200s+10s; algo-1:algo-2@200s between these two alone",
    ),
    FaultKind.SLOW: ("HOST@WHEN[+D]:RATE", "slow a host's link: algo-2@60s+30s:5mbit"),
    FaultKind.DISK_FULL: ("HOST@WHEN[+D]", "leave no room on a host's disk, for a time: algo-2@step:120+30s"),
}


def add_parser(commands: Any) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "rehearse", help="run a job again under faults, beside a twin, and certify how it resumes"
    )
    parser.add_argument("job", metavar="JOB_OR_FILE", help="a training job, or a file with a CreateTrainingJob request")
    for kind, (form, text) in HELP.items():
        parser.add_argument(
            f"--{kind.value}", dest="faults", action="append", type=_fault_of(kind), metavar=form, help=text
        )
    parser.add_argument(
        "--disk-size",
        type=_disk_size,
        metavar="SIZE",
        help="of the disk that hosts with --disk-full get to themselves, in memory: 500MiB; else 2GiB",
    )
    parser.add_argument("--random", type=int, default=0, metavar="N", help="and N faults drawn from --seed")
    parser.add_argument("--seed", type=int, default=None, help="of what is drawn; else a new one, which is printed")
    parser.add_argument("--together", action="store_true", help="run both at once; else one after the other")
    parser.add_argument("--step-regex", metavar="REGEX", help="how lines name a step; group 1 is its number")
    parser.add_argument("--loss-regex", metavar="REGEX", help="how lines name a loss; group 1 is its value")
    parser.add_argument("--timeout", type=seconds, default=DEFAULT_TIMEOUT_S, metavar="SECONDS", help="of each job")
    parser.add_argument(
        "--suffix", type=_suffix, default=None, metavar="TEXT", help="that both jobs' names end with; else a new one"
    )
    parser.add_argument("--certificate", type=Path, metavar="FILE", help="write the certificate there too, as JSON")
    parser.add_argument("--json", action="store_true", help="print the certificate as JSON, and nothing else")
    parser.add_argument("--keep", action="store_true", help="keep both jobs; else they are deleted after a PASS")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Rehearse, print the certificate and return the verdict's exit code. Raises: ClaryError."""
    if options.certificate is not None:
        check_file(options.certificate, "--certificate")
    connection = PatientConnection(connect())
    request = _request_of(connection, options.job)
    possible = connection.get("rehearsal")
    faults = _plan(options, host_names(request), possible["refusals"])
    disk_hosts = disks.disk_hosts(faults)
    disk_bytes = disks.DEFAULT_BYTES if options.disk_size is None else options.disk_size
    if options.disk_size is not None and not disk_hosts:
        print("clary: --disk-size has no effect without --disk-full, whose hosts get such a disk", file=sys.stderr)
    disks.check_disks(
        disk_hosts,
        size_bytes=disk_bytes,
        num_jobs=2 if options.together else 1,
        largest_bytes=possible["largest_disk_bytes"],
    )
    suffix = options.suffix or secrets.token_hex(SUFFIX_BYTES)
    requests = rehearsal_requests(
        request,
        suffix=suffix,
        num_faults=len(faults),
        needs_spot=any(fault.kind is FaultKind.RECLAIM for fault in faults),
        disks=disks_value(disk_hosts, disk_bytes) if disk_hosts else "",
    )
    definitions = (request.get("AlgorithmSpecification") or {}).get("MetricDefinitions") or ()
    reader = make_reader(definitions, step_regex=options.step_regex, loss_regex=options.loss_regex)
    say = _quiet if options.json else _say
    for note in requests.notes:
        say(f"note: {note}")
    if disk_hosts:
        size = disks.in_words(disk_bytes)
        say(f"note: in both jobs the disk of {', '.join(disk_hosts)} for /opt/ml lies in memory and holds {size}")
    has_checkpoints = bool((request.get("CheckpointConfig") or {}).get("S3Uri"))
    twin = JobWatch(connection, requests.twin["TrainingJobName"], reader, say)
    rehearsal = JobWatch(connection, requests.rehearsal["TrainingJobName"], reader, say, faults)
    created: list[JobWatch] = []
    try:
        _create(connection, requests.twin, twin, created)
        if options.together:
            _create(connection, requests.rehearsal, rehearsal, created)
            follow(created, timeout_s=options.timeout)
            twin_run = twin.result(has_checkpoints=has_checkpoints)
        else:
            follow(created, timeout_s=options.timeout)
            twin_run = twin.result(has_checkpoints=has_checkpoints)
            if twin_run.status == COMPLETED:
                rehearsal = JobWatch(connection, rehearsal.name, reader, say, _settled(faults, twin_run, say))
                _create(connection, requests.rehearsal, rehearsal, created)
                follow([rehearsal], timeout_s=options.timeout)
    except JobOverdue as error:
        print(f"clary: {error.message}", file=sys.stderr)
        return EXIT_TIMEOUT
    finally:
        for watch in created:
            watch.stop()
    rehearsal_run = (
        rehearsal.result(has_checkpoints=has_checkpoints)
        if rehearsal in created
        else Run(name=rehearsal.name, status="never created", attempts=())
    )
    certificate = certify(twin_run, rehearsal_run, rehearsal.strikes())
    curves = curves_of(twin_run, rehearsal_run)
    document = json_text({"seed": options.seed, "curves": curves, **to_plain(certificate)})
    # Written first: the file is kept even if printing fails.
    why = "" if options.certificate is None else write_file(options.certificate, document + "\n")
    if options.json:
        print(document)
    else:
        print()
        print(certificate_text(certificate))
    if why:
        sys.stdout.flush()
        print(f"clary: {options.certificate} could not be written: {why}; both jobs are kept", file=sys.stderr)
        return EXIT_UNWRITTEN
    if certificate.verdict is Verdict.PASS and not options.keep:
        for watch in created:
            watch.delete()
    return EXIT_CODES[certificate.verdict]


def _request_of(connection: PatientConnection, job_or_file: str) -> dict[str, Any]:
    """Return the request of a job, or the request in a file.

    Raises: WireError NotFound; ContractError for a file that does not hold a request.
    """
    path = Path(job_or_file)
    if not path.is_file():
        return dict(connection.job_page(job_or_file, "request")["request"])
    try:
        request = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ContractError(
            f"{path}: expected a CreateTrainingJob request as JSON: {error}", fault=Fault.USER
        ) from error
    if not isinstance(request, dict) or "TrainingJobName" not in request:
        raise ContractError(f"{path}: expected a CreateTrainingJob request with TrainingJobName", fault=Fault.USER)
    return request


def _plan(options: argparse.Namespace, hosts: Sequence[str], refusals: dict[str, str]) -> tuple[PlannedFault, ...]:
    """Return all faults, and print them unless `--json` is set.

    Raises: ContractError, before anything starts: no fault is given, a fault is impossible, or `--random` is combined
    with `--together`.
    """
    faults: list[PlannedFault] = list(options.faults or ())
    if options.random:
        if options.together:
            raise ContractError(
                "--random places faults at fractions of the twin's steps, which are known only after the "
                "twin has ended: leave --together out",
                fault=Fault.USER,
            )
        if options.seed is None:
            options.seed = secrets.randbelow(2**31)
        kinds = [kind for kind in FaultKind if kind.value not in refusals]
        faults += draw_faults(options.random, seed=options.seed, host_names=hosts, kinds=kinds)
    elif options.seed is not None:
        print("clary: --seed has no effect without --random N, whose faults it chooses", file=sys.stderr)
    if not faults:
        raise ContractError(
            "no fault is given; give at least one, such as --reclaim step:120, --kill algo-2@30s or --random 3",
            fault=Fault.USER,
        )
    for fault in faults:
        if fault.kind.value in refusals:
            raise ContractError(f"{fault}: {refusals[fault.kind.value]}", fault=Fault.USER)
    check_hosts(faults, hosts)
    if not options.json:
        seed = "" if options.seed is None else f", seed {options.seed}"
        print(f"plan ({len(faults)} fault{'' if len(faults) == 1 else 's'}{seed})")
        for fault in faults:
            print(f"  {fault}", flush=True)
    return tuple(faults)


def _create(connection: PatientConnection, request: dict[str, Any], watch: JobWatch, created: list[JobWatch]) -> None:
    creation = Creation(request)
    try:
        creation.send(connection)
    except ClaryError:
        if creation.is_unsure:  # it may have been created: it is to be stopped then
            watch.is_ours = creation.is_ours
            created.append(watch)
        raise
    created.append(watch)


def _settled(faults: Sequence[PlannedFault], twin: Run, say: Any) -> list[PlannedFault]:
    """Return the faults, with steps filled in for faults that were drawn at random."""
    scale = scale_of(twin.attempts[-1].readings)
    steps = [(epoch if scale.counts_epochs else None, step) for epoch, step in scale.steps]
    settled = [settle(fault, steps) for fault in faults]
    for before, after in zip(faults, settled, strict=True):
        if before != after:
            say(f"{before}: that is {after.moment}")
    return settled


def _fault_of(kind: FaultKind) -> Any:
    def read(text: str) -> PlannedFault:
        try:
            return parse_fault(kind, text)
        except ClaryError as error:
            raise argparse.ArgumentTypeError(error.message) from None

    return read


def _disk_size(text: str) -> int:
    try:
        return disks.parse_size(text)
    except ClaryError as error:
        raise argparse.ArgumentTypeError(error.message) from None


def _suffix(text: str) -> str:
    if not re.fullmatch(r"[a-z0-9]{1,16}", text):
        raise argparse.ArgumentTypeError(f"expected up to 16 lowercase letters and digits, got {text[:40]!r}")
    return text


def _say(text: str) -> None:
    print(text, flush=True)


def _quiet(_text: str) -> None:
    """Print nothing: standard output is for the certificate."""
