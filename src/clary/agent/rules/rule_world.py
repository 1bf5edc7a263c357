"""The sandbox in which an agent runs a job's rules, beside the program's sandbox, with the same files and network."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path, PurePosixPath

from clary.agent.environments.config_files import config_documents, inside_tree
from clary.agent.environments.variables import CONFIG_FILE_VARIABLES
from clary.agent.host.leftovers import remove_tree
from clary.agent.host.program import Program
from clary.agent.host.sandbox import Bind, ProcessSpec, Sandbox
from clary.agent.launchers import LaunchContext
from clary.agent.metrics.memory_watch import watch_memory
from clary.agent.rules.rule_processes import RULES_FOLDER, RuleWorld
from clary.agent.small_files import read_start
from clary.base.errors import AgentError
from clary.contract.agent_protocol import ProcessExit
from clary.contract.failure_reasons import OUT_OF_MEMORY
from clary.contract.job_rules import host_end
from clary.contract.launch_plan import Isolation, LaunchPlan, Resources
from clary.contract.limits.cgroup_names import rules_cgroup_name
from clary.contract.ml_tree import MlTree
from clary.contract.object_store import ObjectStore

_DEFAULT_TENSORS = "output/tensors"
_MEMORY_SHARE = 4  # divisor: rules get a quarter of the host's memory
_LEAST_MEMORY_BYTES = 1024**3
_MIB = 1024**2
_ADVICE = "rules have a quarter of their host's memory, at least 1 GiB: let them keep less of what they read"
_MAX_CPUS = 1.0  # low, because the program wants every CPU
_STORE_ATTEMPTS = 4
# tolerated lag of another host's clock, in addition to the time in which that host prepares the program
_CLOCKS_APART_S = 2.0
# One thread per rule, no GPU, and no debugger hook from a rule's imports.
_VARIABLES = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "",
    "USE_SMDEBUG": "0",
}

logger = logging.getLogger(__name__)


def make_rule_world(
    plan: LaunchPlan, context: LaunchContext, sandbox: Sandbox, *, folder: Path, tree: MlTree, began_at: datetime
) -> RuleWorld:
    """Return the `RuleWorld` of a plan: the folders, variables and sandbox of its rules.

    Args:
        context: of the program.
        sandbox: of the program's host.
        folder: folder on this machine that the program does not see.
        tree: `/opt/ml` in the agent's view.
        began_at: time at which this host began the attempt: after the end of all programs of the previous attempt,
            before the start of this attempt's program.
    """
    remove_tree(str(folder))  # left by the previous job on this host
    is_isolated = plan.isolation is Isolation.NAMESPACES
    is_marked = any(mirror.marks_end for mirror in plan.mirrors)
    is_shared = len(plan.hosts) > 1 and is_marked
    files = folder / "files"
    binds = (*sandbox.binds, Bind(source=str(files), target=RULES_FOLDER)) if is_isolated else sandbox.binds
    own = replace(
        sandbox,
        host_folder=str(folder / "host"),
        cgroup_name=rules_cgroup_name(sandbox.cgroup_name),
        resources=_resources(sandbox.resources),
        binds=binds,
    )
    environment = {
        name: value for name, value in context.environment().items() if name not in CONFIG_FILE_VARIABLES.values()
    }
    return RuleWorld(
        folder=files,
        inside=PurePosixPath(RULES_FOLDER) if is_isolated else PurePosixPath(files),
        read=lambda parts, max_bytes: read_start(files, parts, max_bytes=max_bytes),
        python=context.python,
        environment=environment | _VARIABLES,
        working_folder=str(context.inside.code),
        tensors_folder=tensors_folder(plan, tree),
        tensors_uri=_tensors_uri(plan),
        is_marked=is_marked,
        own_end=host_end(plan.hosts[0].name, attempt=plan.attempt, num_hosts=len(plan.hosts)) if is_shared else "",
        since=began_at.timestamp() - _CLOCKS_APART_S if plan.attempt > 1 else 0.0,
        open_store=functools.partial(ObjectStore, plan.object_store, attempts=_STORE_ATTEMPTS),
        start=functools.partial(_start, own, folder),
    )


def tensors_folder(plan: LaunchPlan, tree: MlTree) -> str:
    """Return the folder, in the program's view, where the job's debugger hook saves tensors."""
    inside = inside_tree(plan, tree)
    document = config_documents(plan, inside).get("debughookconfig") or {}
    return str(document.get("LocalPath") or inside.root / _DEFAULT_TENSORS)


def _tensors_uri(plan: LaunchPlan) -> str:
    """Return the S3 URI of the other hosts' tensors; empty without other hosts, or if rules cannot reach the store."""
    if len(plan.hosts) == 1 or plan.network_isolation:
        return ""
    return next((mirror.s3_uri for mirror in plan.mirrors if mirror.marks_end), "")


def _start(
    sandbox: Sandbox, folder: Path, processes: Sequence[ProcessSpec], on_output: Callable[[int, bytes], None]
) -> RulesHost:
    (folder / "host").mkdir(parents=True, exist_ok=True)
    return RulesHost(Program.start(processes, sandbox, on_output=on_output), sandbox)


class RulesHost:
    """The rules' processes in their sandbox, killed if they exceed its memory limit; see `rule_processes.RuleHost`."""

    def __init__(self, program: Program, sandbox: Sandbox) -> None:
        self._program = program
        self._limit_bytes = sandbox.resources.memory_bytes
        self._excess = ""
        self._watch = watch_memory(program, sandbox, self._end_for_excess)

    def exits(self) -> tuple[ProcessExit, ...]:
        """Return the exits so far."""
        return self._program.exits()

    def out_of_memory(self) -> str:
        """Return a sentence if the memory limit has ended processes, else ""."""
        if self._excess:
            return self._excess
        result = self._program.wait(0.0)
        if result is None or not result.oom_kills or self._limit_bytes is None:
            return ""
        return f"{OUT_OF_MEMORY}: the rules' memory limit of {self._limit_bytes // _MIB} MiB was reached; {_ADVICE}"

    def close(self) -> None:
        """End the remaining processes and clean up."""
        if self._watch is not None:
            self._watch.close()
        self._program.close()

    def _end_for_excess(self, words: str) -> None:
        """End all rules because they used too much memory; called in the watch's thread."""
        self._excess = f"{OUT_OF_MEMORY}: rules on {words}"
        try:
            self._program.kill()
        except AgentError as error:
            logger.error("rules: %s", error.message)


def _resources(host: Resources) -> Resources:
    memory_bytes = host.memory_bytes
    if memory_bytes is not None:
        memory_bytes = min(memory_bytes, max(_LEAST_MEMORY_BYTES, memory_bytes // _MEMORY_SHARE))
    return replace(
        host, num_cpus=min(_MAX_CPUS, host.num_cpus), memory_bytes=memory_bytes, memory_advice=_ADVICE, gpu_indices=()
    )
