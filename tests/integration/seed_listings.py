"""Code listings of SageMaker guides: their text, the changes that a client needs, and their programs.

A listing runs as printed. `...` for the reader's own arguments is replaced by `**the_rest`. Every other change is in a
case's `changes`, and the name of the test gives its reason.
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
IN_PROGRAM = "# LISTING\n"  # line of a program that the listing replaces
CLIENT_TIMEOUT_S = 400
ON_CPU = {"SageMaker": {"TrainingJob": {"Environment": {"CLARY_CUDA_ON_CPU": "1", "OMP_NUM_THREADS": "1"}}}}


@dataclass(frozen=True, kw_only=True)
class Listing:
    """One listing that a client runs, and its files.

    Attributes:
        text: Python code of a client.
        program: text of `train.py`.
        changes: printed text -> its replacement; each printed text must occur.
        rest: further arguments of the estimator for `...`, added to those of every case.
        channels: name -> S3 URI, for listings that end before `fit`.
        after: listing whose job must have ended before this one's job starts.
        beside: folder whose files are copied to the folder of train.py.
    """

    text: str
    program: str
    changes: dict[str, str] = field(default_factory=dict)
    rest: dict[str, Any] = field(default_factory=dict)
    channels: dict[str, str] = field(default_factory=dict)
    after: str = ""
    beside: str = ""


def printed(name: str) -> str:
    """Return the printed text of a listing."""
    return (LISTINGS / name).read_text(encoding="utf-8")


def program(name: str, listing: str = "") -> str:
    """Return the text of a program of these tests, with the listing inserted."""
    text = (HERE / name).read_text(encoding="utf-8")
    assert (IN_PROGRAM in text) == bool(listing), name
    return text.replace(IN_PROGRAM, listing)


def run_listings(service: Any, python: Path, client: str, folder: Path, listings: dict[str, Listing]) -> dict[str, Any]:
    """Run listings by one client; return for each the client's error, or the job with its log.

    The SDK's file of defaults gives each job the variable that maps CUDA to the CPU.
    """
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(json.dumps({"SchemaVersion": "1.0", **ON_CPU}), encoding="utf-8")
    (folder / "listings.json").write_text(json.dumps({name: asdict(one) for name, one in listings.items()}))
    told = folder / "told.json"
    with (folder / "said.txt").open("wb") as said:
        process = subprocess.Popen(
            [str(python), str(HERE / client), str(folder / "listings.json"), str(told)],
            env={**service.environment, "SAGEMAKER_USER_CONFIG_OVERRIDE": str(folder / "config.yaml")},
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

    mpirun may append the line or the prefix of another rank to a line.
    """
    pieces = [piece for line in lines for piece in line.split("facts: ")[1:]]
    return [json.JSONDecoder().raw_decode(piece)[0] for piece in pieces]


def completed_of(told: dict[str, Any]) -> list[str]:
    """Return the log of a job; fail unless the job has completed."""
    assert "error" not in told, told
    assert told["status"] == "Completed", (told["reason"], told["log"][-30:])
    log: list[str] = told["log"]
    return log
