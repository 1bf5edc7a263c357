"""One rank of a parallel TensorFlow program (one per process): its configuration, place and links.

Where: every rank calls `initialize` first, once; other modules call `current()`.

A rank reads its place from the variables of torchrun or Open MPI; without them it is the only rank. Rank 0 serves the
group's store at MASTER_ADDR, on the port in the key `ddp_port` or MASTER_PORT.
"""

from __future__ import annotations

import dataclasses
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from clary.train.collective.adapters import numpy as arrays
from clary.train.collective.settings import CollectiveSettings
from clary.train.parallel.configuration import Configuration
from clary.train.parallel.layout.mesh import Along, Mesh
from clary.train.parallel.layout.place import Place, find_place, find_timeout_s
from clary.train.rank_variables import with_ranks_of_mpirun
from clary.train.tf_parallel.links import Links

_NEEDED_THREADS = 4
"""Least number of TensorFlow's inter-op threads: a step blocks one of them while others run its functions."""
_TORCH_ALONE = {  # keys that change the computation, with the only value supported here
    "tensor_parallel_degree": 1,
    "sharded_data_parallel_degree": 1,
    "shard_optimizer_state": False,
    "prescaled_batch": False,
    "offload_activations": False,
    "delayed_parameter_initialization": False,
    "fp16": False,
    "fp16_params": False,
    "bf16": False,
}


def _new_turn() -> Any:
    with tf.init_scope():
        return tf.Variable(0, trainable=False, name="clary_step_turn")


@dataclass
class Session:
    """One rank of a parallel program.

    Args:
        models: the cut models, in the order of their first steps.
        waiting: functions to call once a model is cut.
        turn: variable that every step in a graph uses, so that steps keep their order.
    """

    configuration: Configuration
    links: Links
    place: Place
    models: list[Any] = field(default_factory=list)
    waiting: list[Callable[[], Any]] = field(default_factory=list)
    turn: Any = field(default_factory=_new_turn)

    @property
    def mesh(self) -> Mesh:
        """The mesh of ranks."""
        return self.links.mesh

    @property
    def part(self) -> int:
        """The partition that this rank holds."""
        return self.links.group_rank(Along.PP)


_session: Session | None = None


def is_initialized() -> bool:
    """Return whether `initialize` has been called."""
    return _session is not None


def current() -> Session:
    """Return the session of this process.

    Raises: RuntimeError before `initialize`.
    """
    if _session is None:
        raise RuntimeError("model parallelism is not initialised: call smp.init() first, on every rank")
    return _session


def initialize(configuration: Configuration) -> Session:
    """Make this process a rank of a parallel program. Every rank calls it; a second call with equal keys does nothing.

    Raises:
        ValueError: the number of ranks does not fit the degrees, a key is supported on torch alone, a variable is
            invalid, or Horovod is requested and cannot be imported.
        RuntimeError: the process is initialised with other keys already, or TensorFlow runs with a single inter-op
            thread.
        BootstrapError: ranks do not connect; the text names them.
    """
    global _session
    if _session is not None:
        if _session.configuration != configuration:
            raise RuntimeError(f"initialised already, with other keys: {_session.configuration}; got {configuration}")
        return _session
    _refuse_keys_of_torch(configuration)
    environ = with_ranks_of_mpirun(os.environ)
    place = find_place(environ)
    mesh = configuration.mesh(place.size)  # checked before any rank waits for another
    _have_threads()
    horovod = _horovod() if configuration.horovod else None
    settings = dataclasses.replace(CollectiveSettings.from_environment(environ), timeout_s=find_timeout_s(environ))
    world = arrays.init(
        environ,
        rank=place.rank,
        size=place.size,
        port=configuration.ddp_port or None,
        group_name="tf-parallel",
        settings=settings,
    )
    made = Session(configuration, Links(mesh, world), place)
    if horovod is not None:
        try:
            _start_horovod(horovod, made)
        except BaseException:
            made.links.close()
            raise
    _session = made
    return made


def reset() -> None:
    """Leave the program's groups and drop the session; for programs that initialise twice, such as tests."""
    global _session
    if _session is not None:
        _session.links.close()
    _session = None


def _refuse_keys_of_torch(configuration: Configuration) -> None:
    for name, needed in _TORCH_ALONE.items():
        if (given := getattr(configuration, name)) != needed:
            raise ValueError(
                f"{name} is {given!r}, which smdistributed.modelparallel.tensorflow does not support: leave "
                "the key out, or use PyTorch"
            )


def _have_threads() -> None:
    """Ensure enough inter-op threads: with one CPU, TensorFlow has only one, which a waiting step would block.

    Raises: RuntimeError if TensorFlow has already started with a single thread.
    """
    asked = tf.config.threading.get_inter_op_parallelism_threads()
    if (asked or len(os.sched_getaffinity(0))) >= _NEEDED_THREADS:
        return
    try:
        tf.config.threading.set_inter_op_parallelism_threads(_NEEDED_THREADS)
    except RuntimeError:
        if (asked or len(os.sched_getaffinity(0))) > 1:
            return
        raise RuntimeError(
            "TensorFlow has already started with a single inter-op thread: call smp.init() before any "
            "other use of TensorFlow, or "
            f"tf.config.threading.set_inter_op_parallelism_threads({_NEEDED_THREADS})"
        ) from None


def _horovod() -> Any:
    """Return the module of Horovod. Raises: ValueError if it cannot be imported."""
    try:
        import horovod.tensorflow as hvd
    except ImportError as error:
        raise ValueError(f"horovod is true, and horovod.tensorflow cannot be imported: {error}") from error
    return hvd


def _start_horovod(hvd: Any, session: Session) -> None:
    """Initialise Horovod among the ranks that hold the same part, so that its size is the number of replicas."""
    members = session.links.ranks(Along.DP)
    if session.links.size(Along.DP) > 1:
        # Each group needs its own rendezvous address, which its first rank provides.
        offers = session.links.allgather(_free_address(session.place), Along.DP)
        os.environ["CLARY_HOROVOD_ADDR"], os.environ["CLARY_HOROVOD_PORT"] = offers[0]
    hvd.init(comm=list(members))


def _free_address(place: Place) -> tuple[str, str]:
    """Return an address of this host that other ranks can reach, with a free port."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((os.environ.get("MASTER_ADDR", "127.0.0.1"), 9))  # sends no packet; selects the interface
        address = str(probe.getsockname()[0])
    with socket.socket() as listener:
        listener.bind((address, 0))
        return address, str(listener.getsockname()[1])
