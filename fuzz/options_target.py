"""Functions over a user's strings and a program's output: hyperparameters, distribution, MPI options, log lines, words.

What must hold: none of these functions raises for any text that passes the wire, command lines can be carried, and how
a program's output is cut into pieces changes nothing of its lines.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

from clary.agent.log.ansi_filter import AnsiFilter
from clary.agent.log.error_scanner import ErrorScanner
from clary.agent.log.log_lines import PIECE_BYTES, LineSplitter
from clary.contract.agent_protocol import MAX_CLUE_CHARACTERS
from clary.contract.settings import distribution, hyperparameters
from clary.contract.settings.mpi_options import parse_mpi_options
from fuzz.byte_reader import ByteReader
from fuzz.findings import require
from fuzz.targets import Run

NOW = datetime(2026, 1, 1, tzinfo=UTC)
_MAX_VALUE_CHARACTERS = 2500  # CreateTrainingJob, HyperParameterValue
_NAMES = (
    "sagemaker_mpi_enabled",
    "sagemaker_mpi_num_of_processes_per_host",
    "sagemaker_mpi_custom_mpi_options",
    "sagemaker_program",
    "sagemaker_torch_distributed_enabled",
    "sagemaker_instance_groups",
    "sagemaker_parameter_server_enabled",
    "sagemaker_distributed_dataparallel_enabled",
    "sagemaker_pytorch_xla_multi_worker_enabled",
    "sagemaker_training_compiler_enabled",
    "sagemaker_submit_directory",
    "mp_parameters",
    "epochs",
    "",
    "e",
)
_VALUES = (
    "true",
    '"true"',
    "True",
    "8",
    '"8"',
    "null",
    '"-x A=B --mca btl tcp,self -np 4 --NCCL_DEBUG INFO"',
    '"train.py"',
    '"../x.sh"',
    '{"partitions": 2}',
    '["a"]',
    "1e999",
    "NaN",
    "9" * 2500,
    "[" * 400 + "]" * 400,
    "[" * 950 + "]" * 950,
    "\\u0000",
    '"\\ud800"',
)
_OPTIONS = (
    "-x",
    "A=B",
    "--mca",
    "-mca",
    "btl",
    "tcp",
    "-np",
    "--oversubscribe",
    "--NCCL_DEBUG",
    "--",
    "-",
    "-x A",
    "=",
)
_OUTPUT = (
    b"\n",
    b"\r",
    b"\r\n",
    b"\x1b[31m",
    b"\x1b]0;title\x07",
    b"\x1b",
    b"\x1b[",
    b"Traceback (most recent call last):\n",
    b"ValueError: no such column\n",
    b"[rank1]: ",
    b"[1,mpirank:0,algo-1]<stderr>:",
    b"terminate called after throwing an instance of 'a'\n  what():  b\n",
    b"failed (exitcode: -9) local_rank: 1 (pid: 7) of binary\n",
    b"\xc3",
    b"\xa9",
    b"\xff",
    b"\0",
    b"x" * 70_000,
)


@contextmanager
def open_target() -> Iterator[Run]:
    """Yield the function that takes an input."""
    yield _run


def _run(data: bytes) -> None:
    reader = ByteReader(data)
    kind = reader.below(3)
    if kind == 0:
        _run_hyperparameters(reader)
    elif kind == 1:
        _run_mpi_options(reader)
    else:
        _run_output(reader)


def _run_hyperparameters(reader: ByteReader) -> None:
    values = {reader.word(_NAMES): reader.word(_VALUES)[:_MAX_VALUE_CHARACTERS] for _ in range(reader.below(7))}
    # The wire lets no lone surrogates in.
    values = {_plain(name): _plain(text) for name, text in values.items()}
    refusals = distribution.refusals(values, has_command=reader.chance(4), instance_groups=reader.choose((None, ["a"])))
    distribution.warnings(values, num_hosts=1 + reader.below(3), instance_types=["ml.p4d.24xlarge"])
    distribution.read_distribution(values)
    hyperparameters.framework_parameters(values)
    arguments = hyperparameters.cli_arguments(values)
    is_usable = all("\0" not in text and _is_text(text) for text in arguments)
    require(is_usable or bool(refusals), "arguments that no command line carries are accepted", arguments=arguments)


def _run_mpi_options(reader: ByteReader) -> None:
    text = " ".join(reader.word(_OPTIONS) for _ in range(reader.below(9)))
    options = parse_mpi_options(text)
    for name in options.variables:
        require(name.isidentifier(), "a variable has a name that no environment holds", name=name, text=text)


def _run_output(reader: ByteReader) -> None:
    pieces = [reader.choose(_OUTPUT) if reader.chance() else reader.chunk() for _ in range(reader.below(12))]
    output = b"".join(pieces)
    filtered = AnsiFilter()
    passed = b"".join(filtered.feed(piece) for piece in pieces) + filtered.finish()
    whole = AnsiFilter()
    require(passed == whole.feed(output) + whole.finish(), "chunks change what a filter passes", output=output)
    for strips in (False, True):
        splitter = LineSplitter(strips_ansi=strips)
        lines = [line for piece in pieces for line in splitter.feed(piece, 0.0)]
        lines += splitter.tick(1000.0) + splitter.finish()
        for line in lines:
            require(bool(line) and "\n" not in line and "\0" not in line, "a line is none", line=line, output=output)
            require(len(line.encode()) <= 4 * PIECE_BYTES, "a line is too long", length=len(line), output=output)
    scanner = ErrorScanner(reader.choose((None, 0)))
    for line in output.decode("utf-8", "backslashreplace").split("\n"):
        scanner.feed(line, NOW)
    for clue in scanner.clues:
        require(len(clue.text) <= MAX_CLUE_CHARACTERS, "a clue is too long", length=len(clue.text))


def _plain(text: str) -> str:
    return text.encode("utf-8", "replace").decode("utf-8")


def _is_text(text: str) -> bool:
    return text == _plain(text)
