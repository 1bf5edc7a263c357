"""The scripts that are run: read from the tables beside this file.

A table is a TOML file of `[[script]]`. What it may say is what `Script` holds; anything else is refused. What all
scripts of a file share is said once, under `[shared]`.
"""

from __future__ import annotations

import dataclasses
import re
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TABLES = Path(__file__).parent / "tables"
SMP, TSM, SMDDP, DDP, TORCHRUN = "smp", "tsm", "smddp", "pytorchddp", "torch_distributed"
MPI, SERVERS, MIRRORED, ALONE = "mpi", "parameter_server", "multi_worker_mirrored_strategy", "none"
NOTEBOOK = "notebook"  # its cells are run as a client's, and start what they start
DISTRIBUTIONS = (SMP, TSM, SMDDP, DDP, TORCHRUN, MPI, SERVERS, MIRRORED, ALONE, NOTEBOOK)
FRAMEWORKS = ("pytorch", "tensorflow", "mxnet")
LAUNCHERS = ("torchrun", "mpirun", "horovodrun", "python")
_COMMIT = re.compile(r"[0-9a-f]{40}")


class TableError(ValueError):
    """A table says something that cannot be run; the message names the file and the script."""


@dataclass(frozen=True)
class Script:
    """One script in one configuration.

    Args:
        name: told in results; one of its own.
        repository: owner/name on GitHub.
        commit: 40 hexadecimal digits.
        path: of the script inside the repository; the folder that it lies in is brought whole.
        environment: name of the environment that runs it.
        distribution: one of `DISTRIBUTIONS`.
        shows: regular expression that the output must have, such as a loss: an exit code alone proves little.
        arguments: hyperparameters of the job, arguments here. {source}, {data},
            {model} and {checkpoints} stand for folders.
        parameters: of SMP, for `smp` and `tsm`.
        framework: whose estimator submits it.
        data: names a maker of `makers.py`.
        beside: names a maker whose files are put beside the script, where it looks for what it would download.
        channels: that the data are given as, the same to each.
        buckets: of a notebook: `bucket/prefix` of S3 that it fetches data from, and the maker of those data.
        ranks: processes of each host.
        hosts: of the job; a script that has several runs as a job alone.
        cuda: whether CUDA means the CPU, for scripts that demand it.
        variables: of the environment, beside those that a job has.
        folder: brought in place of the script's own.
        without: files and folders of it that are not brought, such as requirements.txt with versions that are gone.
        launcher: of the ranks here: torchrun, mpirun for scripts that read its variables, horovodrun, or python for one
            process.
        note: whose doing a failure is, or what the reader must know.
    """

    name: str
    repository: str
    commit: str
    path: str
    environment: str
    distribution: str
    shows: str
    arguments: dict[str, Any] = field(default_factory=dict)
    parameters: dict[str, Any] = field(default_factory=dict)
    framework: str = "pytorch"
    data: str = "none"
    beside: str = ""
    buckets: dict[str, str] = field(default_factory=dict)
    channels: list[str] = field(default_factory=lambda: ["training"])
    ranks: int = 2
    hosts: int = 1
    cuda: bool = True
    variables: dict[str, str] = field(default_factory=dict)
    folder: str = ""
    without: list[str] = field(default_factory=list)
    launcher: str = "torchrun"
    note: str = ""

    @property
    def source(self) -> str:
        """The folder that is brought."""
        return self.folder or self.path.rpartition("/")[0]

    @property
    def entry(self) -> str:
        """The script, as seen from the folder that is brought."""
        return self.path.removeprefix(f"{self.source}/")

    @property
    def runs_here(self) -> bool:
        """Whether one machine without a service can run it: one host, no servers that a job starts, no client."""
        return self.hosts == 1 and self.distribution not in (SERVERS, MIRRORED, NOTEBOOK)

    @property
    def file(self) -> tuple[str, str]:
        """Identity of a script file: its repository and path."""
        return self.repository, self.path.strip()


def read_tables(folder: Path = TABLES) -> list[Script]:
    """Return the scripts of all tables, in the order of their files.

    Raises: TableError naming the file, the script and what is wrong.
    """
    scripts: list[Script] = []
    for path in sorted(folder.glob("*.toml")):
        told = tomllib.loads(path.read_text(encoding="utf-8"))
        shared = told.get("shared", {})
        scripts += [_script(path.name, _merged(shared, entry)) for entry in told.get("script", [])]
    names = [script.name for script in scripts]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise TableError(f"{folder}: two scripts are called {', '.join(twice)}; give each a name of its own")
    return scripts


def _merged(shared: dict[str, Any], entry: dict[str, Any]) -> dict[str, Any]:
    """Return an entry with the values that its file shares.

    Tables are merged; any other value of the entry replaces the shared one.
    """
    merged = shared | entry
    for name, value in shared.items():
        if isinstance(value, dict):
            merged[name] = value | entry.get(name, {})
    return merged


def _script(file: str, entry: dict[str, Any]) -> Script:
    who = f"{file}, script {entry.get('name', '?')}"
    fields = {one.name: one for one in dataclasses.fields(Script)}
    unknown = sorted(entry.keys() - fields)
    needed = [name for name, one in fields.items() if one.default is one.default_factory is dataclasses.MISSING]
    missing = [name for name in needed if name not in entry]
    if unknown or missing:
        raise TableError(f"{who}: unknown are {unknown}, missing are {missing}; known are {sorted(fields)}")
    script = Script(**entry)
    if not _COMMIT.fullmatch(script.commit):
        raise TableError(f"{who}: commit is {script.commit!r}, expected 40 hexadecimal digits")
    if script.distribution not in DISTRIBUTIONS:
        raise TableError(f"{who}: distribution is {script.distribution!r}, expected one of {', '.join(DISTRIBUTIONS)}")
    if script.launcher not in LAUNCHERS:
        raise TableError(f"{who}: launcher is {script.launcher!r}, expected one of {', '.join(LAUNCHERS)}")
    if script.framework not in FRAMEWORKS:
        raise TableError(f"{who}: framework is {script.framework!r}, expected one of {', '.join(FRAMEWORKS)}")
    if not script.path.startswith(f"{script.source}/"):
        raise TableError(f"{who}: {script.path} does not lie in {script.source}; say a folder that holds it")
    return script
