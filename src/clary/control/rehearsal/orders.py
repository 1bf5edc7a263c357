"""Converts orders for rehearsals, which the service receives, to arguments of `clary rehearse`. Pure.

Where: the page `rehearsals` of a job receives orders; `reconcile.desks.rehearsal_desk` runs the command.

    {"faults": [{"kind": "kill", "text": "algo-2@step:120"}], "random": 2, "seed": 7, "together": false, "keep": false,
     "disk_size": "500MiB", "step_regex": "at ([0-9]+)", "loss_regex": "l=([0-9.]+)"}

`text` is the value of the option of that kind, such as `--kill`, on the command line. Each member may be missing, but
the order needs at least one fault.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from clary.base.errors import ContractError, Fault
from clary.control.rehearsal.disks import DEFAULT_BYTES, check_disks, disk_hosts, parse_size
from clary.control.rehearsal.faults import FaultKind, PlannedFault, check_hosts, draw_faults, parse_fault
from clary.control.rehearsal.readings import make_reader
from clary.control.rehearsal.requests import host_names

MAX_FAULTS = 16  # at most this many chosen faults, and this many drawn faults
MAX_SEED = 2**31 - 1
MAX_REGEX = 500  # characters
_REGEXES = ("step_regex", "loss_regex")


@dataclass(frozen=True, kw_only=True)
class RehearsalOrder:
    """An order that the service accepts.

    Attributes:
        faults: chosen and drawn faults, in words.
        arguments: arguments of `clary rehearse`, before the job's name.
        seed: seed of drawn faults; None without drawn faults.
    """

    faults: tuple[str, ...]
    arguments: tuple[str, ...]
    seed: int | None = None


def read_order(
    asked: Any, *, request: Mapping[str, Any], refusals: Mapping[str, str], largest_disk_bytes: int, new_seed: int
) -> RehearsalOrder:
    """Check an order, given as parsed JSON, and convert it to arguments of `clary rehearse`.

    Args:
        asked: the order.
        request: CreateTrainingJob request of the job to rehearse.
        refusals: kind of fault -> the reason why it is not available here.
        largest_disk_bytes: maximum total size of the disks of all hosts in bytes.
        new_seed: seed of drawn faults if the order has no seed.
    Raises: ContractError naming what is wrong and the valid values.
    """
    if not isinstance(asked, Mapping):
        raise _wrong(f"expected a rehearsal with faults, got {str(asked)[:80]}")
    hosts = host_names(request)
    faults = _faults(asked.get("faults"))
    num_drawn = _whole(asked, "random", 0, MAX_FAULTS)
    is_together = bool(asked.get("together"))
    if not faults and not num_drawn:
        raise _wrong("the rehearsal has no fault: choose a fault, or have some drawn")
    for fault in faults:
        if fault.kind.value in refusals:
            raise _wrong(f"{fault}: {refusals[fault.kind.value]}")
    check_hosts(faults, hosts)
    arguments = [f"--{item['kind']}={item['text'].strip()}" for item in asked.get("faults") or ()]
    words = [str(fault) for fault in faults]
    seed = None
    if num_drawn:
        if is_together:
            raise _wrong("drawn faults strike at shares of the twin's steps, so the twin has to run first")
        seed = new_seed if asked.get("seed") is None else _whole(asked, "seed", 0, MAX_SEED)
        kinds = [kind for kind in FaultKind if kind.value not in refusals]
        drawn = draw_faults(num_drawn, seed=seed, host_names=hosts, kinds=kinds)
        words += [str(fault) for fault in drawn]
        arguments += [f"--random={num_drawn}", f"--seed={seed}"]
    needing = disk_hosts(faults)
    if needing:
        size = _text(asked, "disk_size")
        size_bytes = parse_size(size) if size else DEFAULT_BYTES
        num_jobs = 2 if is_together else 1
        check_disks(needing, size_bytes=size_bytes, num_jobs=num_jobs, largest_bytes=largest_disk_bytes)
        arguments += [f"--disk-size={size}"] if size else []
    arguments += _regexes(asked)
    arguments += [f"--{name}" for name in ("together", "keep") if asked.get(name)]
    return RehearsalOrder(faults=tuple(words), arguments=tuple(arguments), seed=seed)


def _faults(asked: Any) -> list[PlannedFault]:
    items = asked or []
    if not isinstance(items, list) or len(items) > MAX_FAULTS:
        raise _wrong(f"faults is a list of at most {MAX_FAULTS}, got {str(asked)[:80]}")
    found = []
    for item in items:
        kind, text = (item.get("kind"), item.get("text")) if isinstance(item, Mapping) else (None, None)
        if not isinstance(kind, str) or kind not in list(FaultKind) or not isinstance(text, str):
            kinds = ", ".join(FaultKind)
            raise _wrong(f"a fault has a kind ({kinds}) and a text such as algo-1@step:120, got {str(item)[:80]}")
        found.append(parse_fault(FaultKind(kind), text))
    return found


def _regexes(asked: Mapping[str, Any]) -> list[str]:
    texts = {name: _text(asked, name) for name in _REGEXES}
    make_reader((), step_regex=texts["step_regex"] or None, loss_regex=texts["loss_regex"] or None)
    return [f"--{name.replace('_', '-')}={text}" for name, text in texts.items() if text]


def _text(asked: Mapping[str, Any], name: str) -> str:
    value = asked.get(name) or ""
    if not isinstance(value, str) or len(value) > MAX_REGEX or "\0" in value or not _is_text(value):
        raise _wrong(f"{name} is a text of at most {MAX_REGEX} characters, got {str(value)[:80]}")
    return value


def _is_text(value: str) -> bool:
    """Whether a text can be an argument of a process: JSON may contain lone surrogates, which cannot be encoded."""
    return not any("\ud800" <= letter <= "\udfff" for letter in value)


def _whole(asked: Mapping[str, Any], name: str, least: int, most: int) -> int:
    value = asked.get(name) or 0
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise _wrong(f"{name} is a whole number from {least} to {most}, got {str(value)[:40]}")
    return value


def _wrong(message: str) -> ContractError:
    return ContractError(message, fault=Fault.USER)
