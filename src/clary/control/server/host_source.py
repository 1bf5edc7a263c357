"""Chooses the source of hosts as the setting `engine` says: this machine, a Slurm cluster, or boxes.

Where: `core` builds the engine with it, before jobs are loaded.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass

from clary.base.errors import EngineError, Fault
from clary.control.attentive_clock import AttentiveClock
from clary.control.engines.boxes.desk import BoxDesk
from clary.control.engines.boxes.scheduler import BoxesScheduler
from clary.control.engines.cluster.bundle import boot_script, make_bundle
from clary.control.engines.cluster.cluster_engine import ClusterEngine
from clary.control.engines.cluster.late_start import LateStart
from clary.control.engines.cluster.scheduler import Boot, ClusterScheduler
from clary.control.engines.slurm.scheduler import SlurmScheduler
from clary.control.server.edge.tls import ensure_certificates
from clary.control.server.foundations import Foundations
from clary.control.server.ports import nodes_host
from clary.control.state_folder import StateFolder

MARK_DIGITS = 8
SLURM_FOLDER = "slurm"
MOST_NAMED = 5  # maximum number of jobs that an error names


@dataclass(frozen=True, kw_only=True)
class HostSource:
    """An engine whose hosts are other machines, and the `BoxDesk` if these machines are boxes."""

    engine: ClusterEngine
    boxes: BoxDesk | None
    signals_all: bool  # whether the engine's SIGTERM reaches every process of a host


def require_same_engine(folder: StateFolder, engine: str, holders: Sequence[str]) -> None:
    """Record the engine of this service, unless jobs hold hosts of another engine, which would never be released.

    Args:
        folder: state folder, which records the engine of the last service.
        engine: engine of this service.
        holders: jobs that hold hosts, or have requested them.
    Raises: EngineError that names both engines, the jobs and the command that continues them.
    """
    last = folder.read_engine()
    if last != engine and holders:
        names = ", ".join(holders[:MOST_NAMED]) + (" and others" if len(holders) > MOST_NAMED else "")
        raise EngineError(
            f"jobs hold hosts of engine {last}, and this service would have engine {engine}: {names}. "
            f"Continue these jobs with: clary up --engine {last}; or stop them with that engine first",
            fault=Fault.USER,
        )
    folder.write_engine(engine)


def other_machines(base: Foundations, attentive: AttentiveClock) -> HostSource | None:
    """Return the engine that the setting `engine` names; None for this machine.

    Args:
        base: settings, keys and ports of the service.
        attentive: measures the silence of boxes.
    """
    settings = base.settings
    if settings.engine == "local":
        return None
    names = {"host": settings.host, "nodes_host": nodes_host(settings)}
    files = ensure_certificates(base.folder.tls, region=settings.region, now=base.clock.now(), **names)
    boot = Boot(
        script=boot_script(),
        service_url=base.ports.urls(settings).nodes,
        ca_pem=files.authority.read_text(encoding="ascii"),
    )
    scheduler: ClusterScheduler
    desk: BoxDesk | None = None
    if settings.engine == "slurm":
        mark = hashlib.sha256(f"slurm:{base.secrets.master_key}".encode()).hexdigest()[:MARK_DIGITS]
        slurm = SlurmScheduler(
            settings.slurm,
            mark=mark,
            folder=base.folder.root / SLURM_FOLDER,
            clock=base.clock,
            environment=os.environ,
            node_python=settings.node_python,
            node_scratch=settings.node_scratch,
        )
        scheduler = LateStart(slurm, base.folder.root / SLURM_FOLDER / "kinds.json", base.clock)
    else:
        boxes = BoxesScheduler(base.folder.root / "boxes", base.clock, attentive=attentive)
        scheduler, desk = boxes, boxes.desk
    engine = ClusterEngine(
        scheduler,
        base.folder.root,
        base.clock,
        bundle=make_bundle(),
        boot=boot,
        needs_namespaces=settings.isolation == "namespaces",
    )
    return HostSource(engine=engine, boxes=desk, signals_all=settings.engine == "slurm")
