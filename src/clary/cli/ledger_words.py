"""Time and money of a job in words: what the hosts' time went into, what would have been paid for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from clary.cli.tables import duration, table

CENT = 0.01
NAMES = {"lost_to_restart": "lost to restart", "idle_waiting": "waiting for others"}
ENDS = (("num_reclaimed", "reclaimed"), ("num_restarted", "restarted"))


def ledger_lines(facts: Mapping[str, Any]) -> list[str]:
    """Return the lines below `time and money`."""
    hosts, wall_s = facts["hosts"], facts["wall_s"]
    all_s = wall_s * len(hosts)
    header = ["PART", "TIME", "SHARE"]
    if len(hosts) > 1:
        header += [host["name"] for host in hosts]
    rows = [_row(part, seconds, all_s, hosts) for part, seconds in facts["seconds"].items()]
    lines = table(header, rows).splitlines() if rows else []
    return [*lines, _goodput_line(facts), *_bill_lines(facts["bill"], len(hosts))]


def _row(part: str, seconds: float, all_s: float, hosts: Sequence[Mapping[str, Any]]) -> list[str]:
    row = [NAMES.get(part, part), duration(seconds), f"{100 * seconds / all_s:.1f} %" if all_s else "-"]
    if len(hosts) > 1:
        row += [duration(host["seconds"][part]) if part in host["seconds"] else "-" for host in hosts]
    return row


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
