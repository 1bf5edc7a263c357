"""Inputs of launchers: facts of a job and a host, and settings that their processes share.

Where: the supervisor creates a context with `make_context`; every launcher is a pure function of it.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass

from clary.agent.host.sandbox import ProcessSpec
from clary.agent.launchers.host_list import host_list_variables
from clary.agent.launchers.open_mpi import Ask, OpenMpi, find_open_mpi
from clary.agent.launchers.shim_files import RANK_SHIM, SHIMS_FOLDER
from clary.base.errors import AgentError, Fault
from clary.contract.launch_plan import HostPlan, Isolation, LaunchPlan
from clary.contract.ml_tree import MlTree
from clary.contract.settings.distribution import Distribution, DistributionKind, read_distribution
from clary.contract.settings.entry_points import EntryKind, EntryPoint
from clary.contract.settings.hyperparameters import SUBMIT_DIRECTORY, cli_arguments


@dataclass(frozen=True, kw_only=True)
class LaunchContext:
    """All inputs of a launcher."""

    plan: LaunchPlan
    host: HostPlan
    inside: MlTree  # `/opt/ml` in the program's view
    python: str  # interpreter of the prepared environment
    library_folder: str  # path of Clary's train side in the program's view
    variables: Mapping[str, str]  # the program's environment, without the launchers' variables
    entry_point: EntryPoint | None  # None: the job names no program whose code it gives
    arguments: tuple[str, ...]  # of the program
    distribution: Distribution
    open_mpi: OpenMpi | None = None
    train_program: str | None = None  # the command `train` of the environment, as in containers

    @property
    def is_isolated(self) -> bool:
        """Whether hosts have their own names and `/opt/ml`, and, if `has_own_network`, their own network."""
        return self.plan.isolation is Isolation.NAMESPACES

    @property
    def has_own_network(self) -> bool:
        """Whether only the job's hosts can reach ports of this host; hosts on nodes of a cluster share a network."""
        return bool(self.plan.network.namespace_paths)

    @property
    def peers(self) -> tuple[HostPlan, ...]:
        """Hosts that take part in the same distribution as this host, in the order of their ranks.

        Like AWS's launchers: by instance group, sorted by name in a group, so algo-10 precedes algo-2.
        """
        groups = self.distribution.instance_groups or (self.host.instance_group,)
        members = [host for host in self.plan.hosts if host.instance_group in groups]
        order = list(dict.fromkeys(host.instance_group for host in members))
        return tuple(sorted(members, key=lambda host: (order.index(host.instance_group), host.name)))

    @property
    def node_rank(self) -> int:
        """Index of this host among its peers."""
        return self.peers.index(self.host)

    @property
    def master(self) -> HostPlan:
        """The peer with rank 0; without peers the job's first host."""
        return self.peers[0] if self.peers else self.plan.hosts[0]

    @property
    def master_address(self) -> str:
        """The master's name for its peers, or its address if hosts share this machine's names."""
        return self.address_of(self.master)

    def address_of(self, host: HostPlan) -> str:
        """Return the name by which the program reaches `host`."""
        return host.name if self.is_isolated else host.address

    def host_list(self) -> dict[str, str]:
        """Return the variable that lists the job's hosts for launchers inside the program."""
        hosts = [(peer.name, self.address_of(peer), peer.processes_per_host) for peer in self.peers]
        return host_list_variables(hosts, here=self.host.name, port=self.plan.network.master_port)

    def program(self) -> tuple[str, ...]:
        """Return the command line of the user's program.

        Raises: AgentError if the job names no program.
        """
        entry_point = self.entry_point
        if entry_point is None:
            raise no_program_error(self.plan)
        if entry_point.kind is EntryKind.SCRIPT:
            return (self.python, RANK_SHIM, entry_point.name, *self.arguments)
        if entry_point.kind is EntryKind.PACKAGE:
            return (self.python, RANK_SHIM, "-m", entry_point.module, *self.arguments)
        # `exec` inside bash runs a file by its shebang line, or as a bash script if it has none.
        return ("/bin/bash", "-c", 'exec "$0" "$@"', f"./{entry_point.name}", *self.arguments)

    def python_path(self, *before: str) -> str:
        """Return PYTHONPATH: the paths in `before`, which may contain colons, then Clary's own path."""
        return ":".join(path for path in (*":".join(before).split(":"), SHIMS_FOLDER, self.library_folder) if path)

    def environment(self, additions: Mapping[str, str] | None = None) -> dict[str, str]:
        """Return the environment of a process, with the master's address and PYTHONPATH: code first, Clary last."""
        return {
            **self.variables,
            "PYTHONPATH": self.python_path(str(self.inside.code), self.variables.get("PYTHONPATH", "")),
            "MASTER_ADDR": self.master_address,
            "MASTER_PORT": str(self.plan.network.master_port),
            **self.host_list(),
            **(additions or {}),
        }

    def process(
        self,
        argv: tuple[str, ...],
        *,
        additions: Mapping[str, str] | None = None,
        rank: int | None = None,
        local_rank: int = 0,
    ) -> ProcessSpec:
        """Return a process that starts in the code folder.

        Args:
            argv: command line of the process.
            additions: variables that override those of `environment`.
            rank: among all processes of the job; None for a process that is not a rank or starts ranks of its own.
            local_rank: index among the ranks of this host.
        """
        return ProcessSpec(
            argv=argv,
            environment=self.environment(additions),
            working_folder=str(self.inside.code),
            rank=rank,
            local_rank=local_rank,
        )


def make_context(
    plan: LaunchPlan,
    host: HostPlan,
    *,
    inside: MlTree,
    python: str,
    library_folder: str,
    variables: Mapping[str, str],
    entry_point: EntryPoint | None,
    ask: Ask,
) -> LaunchContext:
    """Collect the inputs of launchers; programs are searched for in the PATH of `variables`.

    Args:
        ask: runs a process in the program's host and returns the process's output.
    """
    distribution = read_distribution(plan.hyperparameters)
    uses_mpi = distribution.kind in (DistributionKind.MPI, DistributionKind.MODELPARALLEL)
    return LaunchContext(
        plan=plan,
        host=host,
        inside=inside,
        python=python,
        library_folder=library_folder,
        variables=variables,
        entry_point=entry_point,
        arguments=cli_arguments(plan.told_hyperparameters),
        distribution=distribution,
        open_mpi=find_open_mpi(variables, working_folder=str(inside.code), ask=ask)
        if uses_mpi and plan.command is None
        else None,
        train_program=shutil.which("train", path=variables.get("PATH")),
    )


def no_program_error(plan: LaunchPlan) -> AgentError:
    """Return the error for a job that names no program, or names one whose code it does not give."""
    if plan.program is not None:
        return AgentError(
            f"{plan.program.named_by} names {plan.program.name!r}, but there is no code: the hyperparameter "
            f"{SUBMIT_DIRECTORY} is not set, and the image's environment has no program called 'train'. Set "
            f"{SUBMIT_DIRECTORY} to an archive with that file, or entry_point and source_dir of the estimator.",
            fault=Fault.USER,
        )
    return AgentError(
        "The job says nowhere what to run: it has no ContainerEntrypoint, no hyperparameter sagemaker_program, no "
        "SAGEMAKER_PROGRAM in Environment, and the image's environment has no program called 'train'. Set entry_point "
        "and source_dir of the estimator, or ContainerEntrypoint.",
        fault=Fault.USER,
    )
