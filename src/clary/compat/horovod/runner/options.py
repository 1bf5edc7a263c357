"""The command line of horovodrun: options with an effect, options without effect, refused options."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence

VERSION = "0.28.1"
_MIB = 1 << 20

# Option, environment variable of the ranks, and unit of the option's number: "mib" is converted to bytes.
_TUNABLE: Sequence[tuple[str, str, str]] = (
    ("--fusion-threshold-mb", "HOROVOD_FUSION_THRESHOLD", "mib"),
    ("--cycle-time-ms", "HOROVOD_CYCLE_TIME", ""),
    ("--cache-capacity", "HOROVOD_CACHE_CAPACITY", ""),
    ("--timeline-filename", "HOROVOD_TIMELINE", ""),
    ("--stall-check-warning-time-seconds", "HOROVOD_STALL_CHECK_TIME_SECONDS", ""),
    ("--stall-check-shutdown-time-seconds", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", ""),
    ("--gloo-timeout-seconds", "HOROVOD_GLOO_TIMEOUT_SECONDS", ""),
    ("--log-level", "HOROVOD_LOG_LEVEL", ""),
)
_FLAGS: Mapping[str, tuple[str, str]] = {
    "--timeline-mark-cycles": ("HOROVOD_TIMELINE_MARK_CYCLES", "1"),
    "--no-timeline-mark-cycles": ("HOROVOD_TIMELINE_MARK_CYCLES", "0"),
    "--no-stall-check": ("HOROVOD_STALL_CHECK_DISABLE", "1"),
    "--stall-check": ("HOROVOD_STALL_CHECK_DISABLE", "0"),
}
_UNDERSTOOD = ("--gloo",)  # always in effect
_WITHOUT_EFFECT = (
    "--disable-cache",
    "--mpi",
    "--tcp",
    "--autotune",
    "--no-autotune",
    "--hierarchical-allreduce",
    "--no-hierarchical-allreduce",
    "--hierarchical-allgather",
    "--no-hierarchical-allgather",
    "--torus-allreduce",
    "--no-torus-allreduce",
    "--mpi-threads-disable",
    "--no-mpi-threads-disable",
    "--log-with-timestamp",
    "--log-without-timestamp",
    "--log-hide-timestamp",
    "--no-log-hide-timestamp",
)
_VALUES_WITHOUT_EFFECT = (
    "--network-interfaces",
    "--network-interface",
    "--ssh-port",
    "--ssh-identity-file",
    "--mpi-args",
    "--binding-args",
    "--num-nccl-streams",
    "--thread-affinity",
    "--autotune-log-file",
    "--autotune-warmup-samples",
    "--autotune-steps-per-sample",
    "--autotune-bayes-opt-max-samples",
    "--autotune-gaussian-process-noise",
)
_REFUSED = (
    "--min-np",
    "--max-np",
    "--min-num-proc",
    "--max-num-proc",
    "--host-discovery-script",
    "--slots-per-host",
    "--elastic-timeout",
    "--reset-limit",
    "--jsrun",
    "--config-file",
)


def parser() -> argparse.ArgumentParser:
    """Return the parser; it accepts refused options, so that `refusal` can name them."""
    made = argparse.ArgumentParser(prog="horovodrun", description="Start ranks of a program on this machine.")
    made.add_argument("-v", "--version", action="version", version=VERSION)
    made.add_argument("-np", "--num-proc", dest="num_proc", type=int, help="number of ranks; one a slot if left out")
    made.add_argument("-cb", "--check-build", action="store_true", help="say what is built in, and end")
    made.add_argument("-H", "--hosts", help="NAME:SLOTS,...; names of this machine")
    made.add_argument("-hostfile", "--hostfile", help="a file of lines `NAME slots=SLOTS`")
    made.add_argument("--start-timeout", type=float, help="seconds within which all ranks must have called init")
    made.add_argument("--output-filename", help="a folder; each rank's output goes to rank.N/stdout and stderr in it")
    made.add_argument("--verbose", action="store_true", help="print each rank's command line")
    made.add_argument("-prefix-timestamp", "--prefix-output-with-timestamp", action="store_true", dest="stamps")
    for option, _, _ in _TUNABLE:
        made.add_argument(option)
    for option in (*_FLAGS, *_UNDERSTOOD, *_WITHOUT_EFFECT):
        made.add_argument(option, action="store_true")
    for option in _VALUES_WITHOUT_EFFECT:
        made.add_argument(*(("-p", option) if option == "--ssh-port" else (option,)))
    for option in _REFUSED:
        made.add_argument(option, nargs="?", const="", help=argparse.SUPPRESS)
    made.add_argument("command", nargs=argparse.REMAINDER, help="the program and its arguments")
    return made


def refusal(options: argparse.Namespace) -> str:
    """Return why options cannot be honoured; "" if they can."""
    found = [option for option in _REFUSED if getattr(options, _name(option)) is not None]
    if not found:
        return ""
    return (
        f"{', '.join(found)}: ranks do not come and go while a program runs. Start it as a job with "
        "RetryStrategy or checkpoints: a lost host is replaced, and hvd.elastic.run goes on from the last commit"
    )


def without_effect(options: argparse.Namespace) -> list[str]:
    """Return the given options that have no effect."""
    given = [option for option in _WITHOUT_EFFECT if getattr(options, _name(option))]
    return given + [option for option in _VALUES_WITHOUT_EFFECT if getattr(options, _name(option)) is not None]


def variables(options: argparse.Namespace) -> dict[str, str]:
    """Return the variables that the options set in the environment of ranks.

    Raises: ValueError for a fusion threshold that is not a number.
    """
    found = {}
    for option, variable, unit in _TUNABLE:
        text = getattr(options, _name(option))
        if text is not None:
            found[variable] = str(round(_number(option, text) * _MIB)) if unit == "mib" else text
    for option, (variable, value) in _FLAGS.items():
        if getattr(options, _name(option)):
            found[variable] = value
    if options.start_timeout is not None:
        found["CLARY_COLLECTIVE_CONNECT_TIMEOUT_S"] = str(options.start_timeout)
    return found


def slots(hosts: str | None, hostfile_lines: Sequence[str]) -> dict[str, int]:
    """Return the number of slots by host.

    Args:
        hosts: value of `-H`, or None.
        hostfile_lines: lines of the file given by `--hostfile`.

    Raises: ValueError for malformed text.
    """
    found: dict[str, int] = {}
    for text in (hosts or "").split(","):
        if text.strip():
            name, _, number = text.strip().partition(":")
            found[name] = found.get(name, 0) + _count(number or "1", text)
    for line in hostfile_lines:
        words = line.split("#")[0].split()
        if words:
            number = next((word.partition("=")[2] for word in words[1:] if word.startswith("slots=")), "1")
            found[words[0]] = found.get(words[0], 0) + _count(number, line)
    return found


def _number(option: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{option} is {text!r}; expected a number") from None


def _count(text: str, where: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise ValueError(f"hosts: {where.strip()!r}; expected NAME:SLOTS, or NAME slots=SLOTS in a file")
    return int(text)


def _name(option: str) -> str:
    return option.lstrip("-").replace("-", "_")
