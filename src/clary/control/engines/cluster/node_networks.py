"""Chooses the addresses by which the hosts of a job reach each other. Pure.

Where: `cluster_engine` calls it when all hosts of a job have enrolled. A node has several addresses: those in the
subnet that all nodes share over the fastest link are chosen, else those from which the nodes reached the service.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import replace

from clary.contract.enrolment import Address, NodeReport
from clary.contract.launch_plan import Isolation, LaunchPlan, NetworkPlan


def joined(plan: LaunchPlan, reports: Mapping[int, NodeReport]) -> LaunchPlan:
    """Return the plan with the addresses, the interface, the port and the isolation of its hosts' nodes.

    Args:
        plan: plan without addresses.
        reports: number of the host -> report of its node; one for each host.
    """
    chosen = choose_addresses(reports)
    first = chosen[min(chosen)]
    leader = reports[min(reports)]
    is_isolated = all(report.isolation == Isolation.NAMESPACES.value for report in reports.values())
    hosts = tuple(
        replace(
            host,
            address=chosen[host.index].address,
            resources=replace(
                host.resources,
                num_cpus=float(min(host.resources.num_cpus, reports[host.index].num_cpus)),
                memory_bytes=_least(host.resources.memory_bytes, reports[host.index].memory_bytes),
            ),
        )
        for host in plan.hosts
    )
    return replace(
        plan,
        hosts=hosts,
        isolation=Isolation.NAMESPACES if is_isolated else Isolation.PROCESSES,
        network=NetworkPlan(
            interface=first.interface, prefix_length=first.prefix_length, master_port=leader.free_port or 7777
        ),
    )


def choose_addresses(reports: Mapping[int, NodeReport]) -> dict[int, Address]:
    """Return number of the host -> the address by which other hosts reach it."""
    shared: dict[ipaddress.IPv4Network, dict[int, Address]] = {}
    for index, report in reports.items():
        for own in report.addresses:
            try:
                network = ipaddress.IPv4Interface(f"{own.address}/{own.prefix_length}").network
            except ValueError:
                continue
            if own.prefix_length < 32:
                shared.setdefault(network, {}).setdefault(index, own)
    common = [found for found in shared.values() if len(found) == len(reports)]
    if common:
        # Among equally fast links, addresses that reached the service have precedence, because they are known to work.
        return max(common, key=lambda found: (_speed(found), _num_used(found, reports)))
    return {index: _used(report) for index, report in reports.items()}


def _speed(found: Mapping[int, Address]) -> int:
    return min(own.speed_mbit_s for own in found.values())


def _num_used(found: Mapping[int, Address], reports: Mapping[int, NodeReport]) -> int:
    return sum(own.address == reports[index].used_address for index, own in found.items())


def _used(report: NodeReport) -> Address:
    known = next((own for own in report.addresses if own.address == report.used_address), None)
    return known or Address(interface="eth0", address=report.used_address, prefix_length=24)


def _least(limit: int | None, measured: int) -> int | None:
    return measured if limit is None else min(limit, measured)
