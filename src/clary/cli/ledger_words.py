"""Texts on time and money of a job: how the hosts' time was spent, and the price of that time in a cloud."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from clary.cli.tables import GAP, duration, table

CENT = 0.01
NAMES = {
    "lost_to_restart": "lost to restart",
    "lost_to_failure": "lost to failure",
    "lost_to_stop": "stopped, not kept",
    "idle_waiting": "waiting for others",
}
ENDS = (("num_reclaimed", "reclaimed"), ("num_restarted", "restarted"))


def ledger_lines(facts: Mapping[str, Any], *, width: int | None = None) -> list[str]:
    """Return the lines below `time and money`; hosts that do not fit into `width` columns follow in another table."""
    hosts = facts["hosts"]
    lines = _tables(facts, hosts if len(hosts) > 1 else [], width) if facts["seconds"] else []
    return [*lines, _goodput_line(facts), *_bill_lines(facts["bill"], len(hosts))]


def _tables(facts: Mapping[str, Any], hosts: Sequence[Mapping[str, Any]], width: int | None) -> list[str]:
    """Return the parts of the time with their shares, then one column for each host, in as many tables as needed."""
    parts = facts["seconds"]
    all_s = facts["wall_s"] * len(facts["hosts"])
    names = ["PART", *(NAMES.get(part, part) for part in parts)]
    shares = [f"{100 * seconds / all_s:.1f} %" if all_s else "-" for seconds in parts.values()]
    columns = [["TIME", *map(duration, parts.values())], ["SHARE", *shares]]
    columns += [
        [host["name"], *(duration(host["seconds"][part]) if part in host["seconds"] else "-" for part in parts)]
        for host in hosts
    ]
    lines: list[str] = []
    while columns:
        taken = 1
        room = (width or 0) - max(map(len, names)) - _wide(columns[0])
        while taken < len(columns) and (width is None or room >= _wide(columns[taken])):
            room -= _wide(columns[taken])
            taken += 1
        header, *rows = zip(names, *columns[:taken], strict=True)
        lines += [*([""] if lines else []), *table(header, rows).splitlines()]
        columns = columns[taken:]
    return lines


def _wide(column: Sequence[str]) -> int:
    """Return the width of a column on the screen, with the gap before it."""
    return len(GAP) + max(map(len, column))


def _goodput_line(facts: Mapping[str, Any]) -> str:
    num_attempts = facts["num_attempts"]
    ended = [f"{facts[name]} {word}" for name, word in ENDS if facts[name]]
    attempts = f"{num_attempts} attempt{'' if num_attempts == 1 else 's'}"
    if ended:
        attempts += f", {' and '.join(ended)}"
    time = f"{_hosts(len(facts['hosts']))} x {duration(facts['wall_s'])}"
    return f"goodput {100 * facts['goodput']:.1f} % of {time}; {attempts}"


def _bill_lines(bill: Mapping[str, Any] | None, num_hosts: int) -> list[str]:
    if bill is None:
        return []
    lines = [f"training {bill['training_s']} s a host, billable {bill['billable_s']} s"]
    if bill["is_spot"]:
        saved = f"{bill['savings_percent']:.1f} % saved"
        lines[0] += f": {saved}, spot capacity costs {bill['spot_fraction']:.3g} of the price on demand"
    if bill["on_demand_usd"] is not None:
        cost = f"{_hosts(num_hosts)} would have cost {_usd(bill['on_demand_usd'])} on demand, "
        lines.append(f"{cost}{_usd(bill['spot_usd'])} on spot capacity (approximate: {bill['source']})")
    return [*lines, *bill["notes"]]


def _usd(amount: float) -> str:
    return f"${amount:.2f}" if amount >= CENT else f"${amount:.4f}"


def _hosts(count: int) -> str:
    return f"{count} host{'' if count == 1 else 's'}"
