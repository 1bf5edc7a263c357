"""Forms a group: connections through torch's store, a core over them, a ProcessGroup over the core."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import timedelta
from functools import partial

import torch.distributed as dist

from clary.train._native.interface import Core
from clary.train.collective.adapters.torch import compute_trace
from clary.train.collective.adapters.torch.process_group import SmddpProcessGroup
from clary.train.collective.adapters.torch.store import TorchStore
from clary.train.collective.bootstrap.group import connect_group
from clary.train.collective.cores import open_core
from clary.train.collective.settings import CollectiveSettings
from clary.train.collective.trace import writer_of_process

_TIMEOUT_VARIABLE = "CLARY_COLLECTIVE_TIMEOUT_S"


def connect(options: dist.distributed_c10d._DistributedBackendOptions) -> SmddpProcessGroup:
    """Connect this rank with the other ranks of the group and return its ProcessGroup. All ranks must call it.

    Raises:
        BootstrapError: a rank did not join, was not reachable, or failed to authenticate.
        ValueError: a setting in the environment is wrong.
    """
    rank, size = options.group_rank, options.group_size
    settings = CollectiveSettings.from_environment(os.environ)
    settings = replace(settings, timeout_s=timeout_s_of(options.timeout, settings))
    if (writer := writer_of_process(settings.trace, rank)) is not None:
        compute_trace.install(writer)
    store = TorchStore(options.store)

    def open_named(name: str) -> Core:
        connections = connect_group(store, rank=rank, size=size, group_name=name, settings=settings)
        return open_core(connections, settings)

    return SmddpProcessGroup(
        options.store,
        rank,
        size,
        name=options.group_id,
        core=open_named(options.group_id),
        open_second_core=partial(open_named, f"{options.group_id}-staged"),
        timeout=options.timeout,
    )


def timeout_s_of(asked: timedelta, settings: CollectiveSettings) -> float:
    """Return the limit of one operation: the script's, or the environment's if the script kept torch's default.

    torch passes its default of half an hour if the script sets no limit. Scripts rely on that half hour, for instance
    while rank 0 alone prepares data, so it holds unless CLARY_COLLECTIVE_TIMEOUT_S is set.
    """
    asked_s = asked.total_seconds()
    is_default = asked_s == dist.constants.default_pg_timeout.total_seconds()
    return settings.timeout_s if is_default and os.environ.get(_TIMEOUT_VARIABLE) else asked_s
