"""Connection of the ranks that together hold one model, and start of the server over their streams.

Where: `DistributedModel` calls it once on all ranks, when it places its modules.
"""

from __future__ import annotations

import itertools
import os
from dataclasses import replace

import torch.distributed as dist

from clary.train.collective.adapters.torch.store import TorchStore
from clary.train.collective.bootstrap.hosts import host_identity
from clary.train.collective.bootstrap.streams import connect_streams
from clary.train.collective.settings import CollectiveSettings
from clary.train.parallel.layout.mesh import Along, Axis
from clary.train.parallel.pipeline.hand_over import HandOver, agree, own_seat
from clary.train.parallel.pipeline.lending import CudaLender
from clary.train.parallel.pipeline.links import Links
from clary.train.parallel.pipeline.server import Neighbours, Serve, Server
from clary.train.parallel.runtime import Runtime

_numbers = itertools.count()  # numbers of this process's servers, equal on all ranks


def open_server(runtime: Runtime, serve: Serve) -> Server:
    """Connect the ranks and return this rank's server.

    Ranks of a tensor group follow the group's first rank; with `deterministic_server`, all ranks that hold the same
    stage follow the first of them.
    Raises: BootstrapError if ranks do not connect or cannot be reached.
    """
    configuration, mesh, rank = runtime.configuration, runtime.mesh, runtime.rank
    linked = Along.WORLD if configuration.deterministic_server else Along.MP
    ordered = Along.DP if configuration.deterministic_server else Along.TP
    ranks = mesh.group(linked, rank)
    streams = connect_streams(
        TorchStore(dist.distributed_c10d._get_default_store()),
        rank=ranks.index(rank),
        size=len(ranks),
        group_name=f"clary-pipeline-{next(_numbers)}-{ranks[0]}",
        settings=replace(CollectiveSettings.from_environment(os.environ), timeout_s=runtime.timeout_s),
    )
    pipeline = mesh.group(Along.PP, rank)
    together = mesh.group(ordered, rank)
    neighbours = Neighbours(
        pipeline=tuple(ranks.index(one) for one in pipeline),
        pipeline_rank=pipeline.index(rank),
        followers=tuple(ranks.index(one) for one in together if one != rank) if together[0] == rank else (),
        leader=None if together[0] == rank else ranks.index(together[0]),
        names=tuple(f"rank {one} (pipeline rank {mesh.coordinate(one, Axis.PP)})" for one in ranks),
    )
    return Server(
        Links(streams, timeout_s=runtime.timeout_s, hand_over=_agree_on_hand_over(runtime, linked)),
        neighbours,
        serve=serve,
        policy=configuration.pipeline,
        max_active=configuration.active_microbatches,
        timeout_s=runtime.timeout_s,
    )


def _agree_on_hand_over(runtime: Runtime, linked: Along) -> HandOver | None:
    """Agree with the linked ranks on the tensors that stay in GPU memory."""
    host = host_identity(CollectiveSettings.from_environment(os.environ), runtime.rank)
    seat = own_seat(runtime.device, host)
    return agree(
        runtime.mesh.group(linked, runtime.rank).index(runtime.rank),
        seat,
        lambda: CudaLender(runtime.device, seat.visible),
        lambda value: runtime.groups.allgather(value, linked),
    )
