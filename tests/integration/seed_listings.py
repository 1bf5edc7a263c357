"""Listings of guides to SageMaker: their text, the changes that a client needs, and their programs.

A listing is run as it is printed. Where its print says `...` for arguments that are the reader's own, they are
`**the_rest` here; every other change is a case's `changes`, text by text, and the name of its test says why.
"""

from __future__ import annotations

import json
import subprocess
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent / "seeds"
LISTINGS = Path(__file__).parents[1] / "assets/seeds"
ROLE = "arn:aws:iam::000000000000:role/ClaryExecutionRole"
IN_PROGRAM = "# LISTING\n"  # line of a program that a listing takes the place of
CLIENT_TIMEOUT_S = 400
ON_CPU = {"SageMaker": {"TrainingJob": {"Environment": {"CLARY_CUDA_ON_CPU": "1", "OMP_NUM_THREADS": "1"}}}}


@dataclass(frozen=True, kw_only=True)
class Listing:
    """One listing that a client runs, and the files beside it.

    Attributes:
        text: Python of a client.
        program: text of train.py.
        changes: printed text -> text in its place; each has to occur.
        rest: arguments of the estimator for `...`, above those that every case has.
        channels: name -> S3 URI, for listings that end before `fit`.
        after: listing whose job has to have ended before this one's begins.
        beside: folder whose files are put beside train.py.
    """

    text: str
    program: str
    changes: dict[str, str] = field(default_factory=dict)
    rest: dict[str, Any] = field(default_factory=dict)
    channels: dict[str, str] = field(default_factory=dict)
    after: str = ""
    beside: str = ""


def printed(name: str) -> str:
    """Return the text of a listing, as it is printed."""
    return (LISTINGS / name).read_text(encoding="utf-8")


def program(name: str, listing: str = "") -> str:
    """Return the text of a program in the folder of these tests, with a listing in its place."""
    text = (HERE / name).read_text(encoding="utf-8")
    assert (IN_PROGRAM in text) == bool(listing), name
    return text.replace(IN_PROGRAM, listing)


def run_listings(service: Any, python: Path, client: str, folder: Path, listings: dict[str, Listing]) -> dict[str, Any]:
    """Run listings by one client, and return of each: the error of the client, or the job with its log.

    The SDK's own file of defaults gives each job the variable that has CUDA mean the CPU.
    """
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(json.dumps({"SchemaVersion": "1.0", **ON_CPU}), encoding="utf-8")
    (folder / "listings.json").write_text(json.dumps({name: asdict(one) for name, one in listings.items()}))
    told = folder / "told.json"
    with (folder / "said.txt").open("wb") as said:
        process = subprocess.Popen(
            [str(python), str(HERE / client), str(folder / "listings.json"), str(told)],
            env={**service.environment, "SAGEMAKER_ADMIN_CONFIG_OVERRIDE": str(folder / "config.yaml")},
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
        )
        try:
            code: int | None = process.wait(timeout=CLIENT_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            code = None
    words = (folder / "said.txt").read_text(encoding="utf-8", errors="replace")
    ended = f"did not end in {CLIENT_TIMEOUT_S} s" if code is None else f"ended with {code}"
    assert code == 0, f"{client} {ended}; the last that it said:\n{words[-6000:]}"
    result: dict[str, Any] = json.loads(told.read_text(encoding="utf-8"))
    return result


def facts_of(lines: list[str]) -> list[dict[str, Any]]:
    """Return the documents that the ranks of a job have printed after `facts: `.

    mpirun may put the line of another rank, or the mark of one, where a line ends.
    """
    pieces = [piece for line in lines for piece in line.split("facts: ")[1:]]
    return [json.JSONDecoder().raw_decode(piece)[0] for piece in pieces]


def completed_of(told: dict[str, Any]) -> list[str]:
    """Return the log of a job that has to have completed."""
    assert "error" not in told, told
    assert told["status"] == "Completed", (told["reason"], told["log"][-30:])
    log: list[str] = told["log"]
    return log
