"""The service: its layers are built and started in order, and ended in reverse.

Where: `python -m clary.control.server` runs it; `clary up` starts that in the background.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, Protocol

from clary import __version__
from clary.base.errors import StoreError
from clary.base.processes import ProcessId
from clary.control.background_tasks import keep_running
from clary.control.clients.client_files import SAGEMAKER_CONFIG, sagemaker_config
from clary.control.jobs import events
from clary.control.jobs.training_job import EndCause
from clary.control.kept_settings import keep_settings
from clary.control.reconcile.desks.profile_keeping import keep_profiles
from clary.control.reconcile.hub import JobHub
from clary.control.reconcile.log_cleaning import keep_removing
from clary.control.reconcile.profiler_rules import ProfilerRules
from clary.control.reconcile.reconciler import Reconciler
from clary.control.reconcile.series_keeping import keep_series
from clary.control.reconcile.unowned_hosts import end_all
from clary.control.scheduling.prices import load_prices
from clary.control.server.backup_keeping import BackupKeeper
from clary.control.server.core import Core
from clary.control.server.doors import open_doors
from clary.control.server.edge.handed_sockets import HandedSockets, send_sockets
from clary.control.server.egress_site import egress_policy
from clary.control.server.foundations import Foundations, open_foundations
from clary.control.server.ownership import HeldLease, cancel
from clary.control.server.state_files import keep_files, mend_engine
from clary.control.server.succession import Leave
from clary.control.services.tuning.tuning_keeper import TuningKeeper
from clary.control.settings import Settings
from clary.control.state_folder import ServiceRecord, StateFolder
from clary.control.unused_settings import unused_settings

log = logging.getLogger(__name__)

DOWN_GRACE_S = 10.0  # grace of programs of running jobs when the service stops
DOWN_DEADLINE_S = 45.0  # longest wait until their results are in the object store


class Rehearsals(Protocol):
    """The part of the rehearsals that the end of the service needs."""

    async def interrupt(self) -> None:
        """End all running rehearsals, and accept no more."""


async def run_service(
    settings: Settings,
    *,
    leave: Leave,
    begins_anew: bool = False,
    makes_keys: bool = False,
    is_supervised: bool = False,
    handed: HandedSockets | None = None,
) -> None:
    """Run until `leave` is set, then end running jobs and all started parts, or leave jobs to the next service.

    Args:
        settings: settings of the service.
        leave: set when the service has to stop.
        begins_anew: whether the service may create a new database although the folder had one.
        makes_keys: whether the service may create new keys although the folder had others.
        is_supervised: whether the service runs in the foreground of another program.
        handed: listening sockets of the service whose place this one takes; None: there is none.

    Raises: ClaryError if a part could not be started; the parts started before it are ended.
    """
    prices = load_prices(settings.prices_file)
    handed = handed or HandedSockets()
    async with AsyncExitStack() as stack:
        stack.callback(handed.close)
        base = await open_foundations(
            stack, settings, leave=leave, begins_anew=begins_anew, makes_keys=makes_keys, handed=handed
        )
        egress = await asyncio.to_thread(
            egress_policy, settings, base.folder, os.environ, ports=base.ports, object_store=base.object_store
        )
        core = Core(base, egress, prices)
        await core.load(stack)
        stack.push_async_callback(_leave_no_hosts, base.lease, core)  # after the end of all tasks that act on hosts
        memory_limits = core.engine.memory_limits()
        isolation = core.engine.capacity().isolation  # before clients wait for answers: this creates a network
        reconciler = core.reconciler(isolation)
        backups = BackupKeeper(base.store, base.life, base.clock, interval_s=settings.backup_interval_s)
        doors = await open_doors(stack, base, core, backups, handed)
        handed.close()
        (base.folder.client / SAGEMAKER_CONFIG).write_text(sagemaker_config(settings))
        _start_tasks(stack, base, core, backups, reconciler)
        _announce(stack, base, core.hub, leave, memory_limits=memory_limits)
        keep_settings(base.folder, settings, is_supervised=is_supervised)
        log.info("clary %s answers at %s (isolation: %s)", __version__, base.ports.urls(settings).api, isolation.value)
        log.info("memory limits of hosts are %s", memory_limits)
        for sentence in unused_settings(settings):
            log.warning("%s", sentence)
        gc.freeze()  # objects of the start live as long as the service: each full collection took 70 to 100 ms for them
        await leave.wait()
        if leave.keeps_jobs:
            log.info("the service hands over: %d jobs with hosts go on without it", len(core.hub.active_jobs()))
            send_sockets(base.folder.root / "run", doors)
            core.agents.close()
            core.pools.close()
            return
        await end_work(base.lease, core.rehearsing, core.hub, reconciler)


def _start_tasks(
    stack: AsyncExitStack, base: Foundations, core: Core, backups: BackupKeeper, reconciler: Reconciler
) -> None:
    """Start the background tasks."""
    store, hub, client, clock = base.store, core.hub, base.client, base.clock
    tasks: dict[str, Callable[[], Coroutine[Any, Any, None]]] = {
        "rule-notices": core.notices.send_all,
        "backups": backups.run,
        "trace-export": core.traces.send_all,
        "reconciler": reconciler.run,
        "log-cleaning": partial(keep_removing, base.logs, hub),
        "series-keeping": partial(keep_series, store.series, core.samples, base.settings, clock),
        "profile-keeping": partial(keep_profiles, core.services.profiles, hub, store.get_job, client),
        "profiler-rules": ProfilerRules(hub, store, store.series, client, clock=clock).run,
    }
    tasks["tuning"] = TuningKeeper(core.services).run
    if core.cluster is not None:
        tasks["node-kinds"] = core.cluster.follow
        tasks["reaper"] = core.unowned.reap
    for name, work in tasks.items():
        stack.push_async_callback(cancel, keep_running(name, work))


def _announce(stack: AsyncExitStack, base: Foundations, hub: JobHub, leave: Leave, *, memory_limits: str) -> None:
    """Record the addresses of this service, and start the task that restores files of the state folder."""
    urls = base.ports.urls(base.settings)
    me = ProcessId.of(os.getpid())
    assert me is not None, "this process exists"
    record = ServiceRecord(
        pid=me.pid,
        process_started=me.started,
        url=urls.api,
        tls_url=urls.tls,
        proxy_url=urls.proxy,
        region=base.settings.region,
        version=__version__,
        memory_limits=memory_limits,
    )
    base.folder.write_service_record(record)
    others: Sequence[Callable[[], None]] = (*base.file_keepers, partial(mend_engine, base.folder, base.settings.engine))
    files = partial(keep_files, base.folder, record, base.secrets, others=others)
    stack.push_async_callback(cancel, keep_running("state-files", files))
    stack.callback(_forget_address, base.folder, hub, leave)


def _forget_address(folder: StateFolder, hub: JobHub, leave: Leave) -> None:
    """Remove run/service.json, not its copy, unless jobs still run: they reach the next service at its address."""
    if not hub.active_jobs() and not leave.keeps_jobs:
        folder.service_record_path.unlink(missing_ok=True)


async def end_work(lease: HeldLease, rehearsing: Rehearsals, hub: JobHub, reconciler: Reconciler) -> None:
    """End rehearsals and running jobs before the service ends, unless they are another service's by now.

    Args:
        lease: the service's lease of the database.
        rehearsing: rehearsals of the service.
        hub: jobs of the service.
        reconciler: starts no job from now on.
    """
    await reconciler.drain()
    if lease.is_lost:
        log.warning("running jobs are not ended: the service that has taken the lease manages them")
        return
    # before the rehearsals' jobs are ended, because these ends would look like results
    await rehearsing.interrupt()
    await _end_jobs(hub, reconciler)


async def _leave_no_hosts(lease: HeldLease, core: Core) -> None:
    """End the hosts of this machine if another service has the lease; it may reach hosts of other machines itself."""
    if lease.is_lost and core.cluster is None:
        await end_all(core.engine)


async def _end_jobs(hub: JobHub, reconciler: Reconciler) -> None:
    """End the running jobs and wait for their results; queued jobs wait for the next service.

    A job whose stop cannot be stored, on a full disk for instance, continues to run. Hosts whose results are not in the
    object store by the deadline keep them: they repeat the upload until the next service has started the store again.
    """
    told: dict[str, bool] = {}  # job -> whether its stop is stored
    deadline = asyncio.get_running_loop().time() + DOWN_DEADLINE_S
    while True:
        # Again after each end: a job whose start was being stored may have become active meanwhile.
        for job in hub.active_jobs():
            if job.name not in told:
                told[job.name] = await _is_told_to_stop(hub, job.name)
        left = [job.name for job in hub.active_jobs() if told.get(job.name)]
        left_s = deadline - asyncio.get_running_loop().time()
        if not left or left_s <= 0:
            break
        await hub.wait_for_job(left[0], left_s)
    try:
        await reconciler.give_pools_back()
    except StoreError as error:
        log.warning("hosts of waiting jobs could not be given back; the next service does it: %s", error.message)
    for name in left:
        words = "its hosts keep what is not uploaded, and the next service takes over"
        log.warning("job %s has not ended within %.0f s; %s", name, DOWN_DEADLINE_S, words)


async def _is_told_to_stop(hub: JobHub, name: str) -> bool:
    try:
        await hub.apply(name, events.StopWanted(cause=EndCause.STOP_REQUESTED, grace_s=DOWN_GRACE_S))
    except StoreError as error:
        log.warning("job %s could not be stopped and continues to run; the next service takes over: %s", name, error)
        return False
    return True
