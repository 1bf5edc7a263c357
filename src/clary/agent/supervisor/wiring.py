"""The steps of a host outside of tests. Each step calls its module with the module's part of the plan.

Where: `python -m clary.agent` gives `HostSteps` to the supervisor; `steps.Steps` documents the methods. Only this
module connects the agent's packages.

Folders: work_folder/HOST/ml is the host's `/opt/ml`; work_folder/HOST holds the agent's other files of the host. The
service's home is the parent of `jobs` in work_folder; programs do not see it.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from clary.agent.artifacts import upload_results
from clary.agent.artifacts.mirrored_places import mirrored_places
from clary.agent.autopsy.clues import read_records
from clary.agent.channels import PipeFeeder
from clary.agent.checkpoints.host_checkpoints import HostCheckpoints
from clary.agent.environments.code import CodeFacts, code_channel, prepare_code
from clary.agent.environments.compiled_code import CompiledCode
from clary.agent.environments.config_files import channels_of, errors_folder, inside_tree, run_folder, write_tree
from clary.agent.environments.installation import InstallationWorld
from clary.agent.environments.requirements import PreparedEnvironment, prepare_environment
from clary.agent.environments.sdk_drivers import driver_notes
from clary.agent.environments.stop_notice import write_stop_notice
from clary.agent.environments.train_library import PACKAGE_FOLDER, library_folder, write_train_library
from clary.agent.environments.variables import POOL_CACHE_FOLDER, pool_cache, program_variables, service_variables
from clary.agent.health.host_checks import available_memory
from clary.agent.host.host_command import run_in_host
from clary.agent.host.looking_ahead import look_ahead
from clary.agent.host.mounts.interpreter_folders import interpreter_binds, needs_overlay, why_not_visible
from clary.agent.host.mounts.own_disk import OwnDisk
from clary.agent.host.program import Program
from clary.agent.host.sandbox import Bind, ProcessSpec, Sandbox
from clary.agent.host.ssh_access import names_sshd, prepare_ssh, why_no_ssh
from clary.agent.launchers import LaunchContext, make_context, select, shims_path
from clary.agent.metrics.memory_watch import watch_memory
from clary.agent.rules.rule_processes import RuleWorld
from clary.agent.rules.rule_world import make_rule_world
from clary.agent.small_files import read_start
from clary.agent.supervisor.host_channels import HostChannels
from clary.agent.supervisor.host_program import HostProgram
from clary.agent.supervisor.standby_keeping import StandbyKeeper
from clary.agent.supervisor.steps import Mirror, OutputLog, Uploaded
from clary.base.clock import SystemClock
from clary.base.disk_space import disk_errors_named
from clary.base.errors import AgentError, Fault
from clary.contract.agent_protocol import Clue, StagedPart, UploadRole
from clary.contract.job_rules import MirrorPlan
from clary.contract.launch_plan import Channel, InputMode, Isolation, LaunchPlan
from clary.contract.limits.cgroup_names import host_cgroup_name
from clary.contract.ml_tree import OPT_ML, MlTree
from clary.contract.object_store import ObjectStore
from clary.contract.rehearsals import REHEARSAL_VARIABLE
from clary.contract.settings.distribution import DistributionKind

JOBS_FOLDER = "jobs"  # below the service's home
_FAILURE_CHARACTERS = 1024
_LONGEST_CHARACTER_BYTES = 4
_CLOSE_S = 5.0
# The retries span 18 to 36 seconds: a restarted object store is back by then. The supervisor repeats whole fetches and
# uploads. A pipe cannot be fed again from its beginning: its retries span three to six minutes.
_STORE_ATTEMPTS = 8
_FEED_ATTEMPTS = 40
WANDB_SECRETS = "secrets.env"  # next to the code, named by `wandb.sagemaker_auth`
_SECRETS_BYTES = 64 * 1024
_ASK_LIMIT_S = 20.0
_SSH_FOLDER = "ssh"  # next to the hosts' folders, with the files that hosts share
# Distributions whose launcher AWS's containers run under mpirun --tag-output.
_TAGGED_KINDS = (DistributionKind.PYTORCHDDP_OR_SMDDP, DistributionKind.MPI, DistributionKind.MODELPARALLEL)

PROXY_VARIABLES = ("http_proxy", "https_proxy", "no_proxy")


@dataclass(frozen=True, kw_only=True)
class _PlannedProgram:
    """The program of one host, before its start."""

    context: LaunchContext
    processes: tuple[ProcessSpec, ...]
    sandbox: Sandbox


class HostSteps:
    """The work on one host; see `steps.Steps` for its methods.

    Args:
        plan: the attempt.
        host: name of the host.
        standby: keeps a standby host, on machines of a warm pool.
    Raises: KeyError if the plan has no such host.
    """

    def __init__(self, plan: LaunchPlan, host: str, *, standby: StandbyKeeper | None = None) -> None:
        self._plan = plan
        self._host = plan.host(host)
        if REHEARSAL_VARIABLE in plan.user_environment:
            standby = None  # records of a rehearsal's programs are kept in the attempt's own folder
        self._standby = standby
        ready = standby.folder_for(plan) if standby is not None else None
        self._has_ready_host = ready is not None
        self._folder = ready or Path(plan.work_folder) / host
        self._tree = MlTree(self._folder / "ml")
        self._channels = {channel.name: channel for channel in channels_of(plan, self._host)}
        self._stopping = threading.Event()
        self._lock = threading.Lock()  # guards the fields that several steps use at the same time
        self._store: ObjectStore | None = None
        self._feed_store: ObjectStore | None = None  # for pipes
        self._closers: list[threading.Thread] = []
        self._notes: list[str] = []
        self._code: CodeFacts | None = None
        self._environment: PreparedEnvironment | None = None
        self._compiled = CompiledCode(plan, self._tree)
        self._planned: _PlannedProgram | None = None  # by `make_program_ready`, for `start_program`
        self._program: HostProgram | None = None  # set once it runs
        self._checkpoints: HostCheckpoints | None = None
        self._context: LaunchContext | None = None  # of the program, set once it runs
        self._disk: OwnDisk | None = None
        self._mirrored = mirrored_places(plan, self._tree, self._folder)
        self._rules_folder = self._folder / "rules"
        self._began_at = SystemClock().now()
        self._input = HostChannels(plan, tree=self._tree, host_folder=self._folder, stop=self._stopping)

    @property
    def channel_names(self) -> tuple[str, ...]:
        """Channels that this host gets."""
        return tuple(self._channels)

    @property
    def code_channel(self) -> str | None:
        """Channel that holds the code; None if no channel holds it."""
        return code_channel(self._plan)

    @property
    def checkpoints(self) -> HostCheckpoints | None:
        """The checkpoint folder, after `build_tree`; None for a job without CheckpointConfig."""
        return self._checkpoints

    @property
    def ml_folder(self) -> Path:
        """The host's `/opt/ml` on this machine."""
        return self._tree.root

    @property
    def notes(self) -> tuple[str, ...]:
        """Warnings of this host so far."""
        with self._lock:
            return tuple(self._notes)

    @property
    def summaries(self) -> tuple[str, ...]:
        """Log lines on the sources of the channels and of compiled code."""
        return (*self._input.summaries, *self._compiled.summaries)

    def build_tree(self) -> None:
        """Make `/opt/ml` with its folders and configuration files."""
        if self._plan.isolation is Isolation.NAMESPACES and not self._has_ready_host:
            look_ahead()
        with disk_errors_named(self._tree.root, needed_bytes=None):
            if self._host.disk_bytes is not None:
                self._disk = OwnDisk(
                    self._folder,
                    ml_folder=self._tree.root,
                    size_bytes=self._host.disk_bytes,
                    outside=(self._tree.input, run_folder(self._tree)),
                )
                self._disk.mount(available_bytes=available_memory())
            write_tree(self._plan, self._host, self._tree)
            write_train_library(self._tree)
            for place in self._mirrored:
                place.make()
            if self._plan.shares_hosts:
                self._pool_cache.mkdir(parents=True, exist_ok=True)
            if self._plan.checkpoint_s3_uri is not None:
                checkpoints = HostCheckpoints(self._plan, self._host.name, tree=self._tree, host_folder=self._folder)
                checkpoints.folder.make()
                if self._disk is not None and checkpoints.is_bound:
                    self._disk.hold(checkpoints.folder.path)
                self._checkpoints = checkpoints

    @property
    def _pool_cache(self) -> Path:
        """Cache folder on this machine that jobs of the host's pool reuse."""
        return Path(self._plan.pool_folder) / self._host.name / POOL_CACHE_FOLDER

    def fetch_code(self) -> None:
        """Put the user's code into its folder."""
        self._code = prepare_code(self._plan, self._input.code_source(self._open_store()), self._tree)
        self._note(self._code.notes)

    def fetch_channel(self, name: str) -> None:
        """Fetch the data of one channel."""
        channel = self._channels[name]
        index, number = self._share(channel)
        facts = self._input.fetch(channel, store=self._open_store(), host_index=index, num_hosts=number)
        self._note(facts.notes)
        if channel.file_system_path is not None and self._plan.isolation is Isolation.PROCESSES:
            self._link(channel, os.path.join(channel.file_system_path, channel.file_system_folder))

    def restore_checkpoints(self) -> None:
        """Fetch the checkpoints of earlier attempts and jobs."""
        assert self._checkpoints is not None
        self._checkpoints.restore(self._open_store())
        self._note(self._checkpoints.warnings)

    def prepare_environment(self) -> None:
        """Make the program's Python environment ready."""
        assert self._code is not None
        self._environment = prepare_environment(
            self._plan.environment,
            self._code.requirements_file,
            Path(self._plan.cache_folder),
            make_world=self._installation_world,
            package_folder=self._code.package_folder,
            stop=self._stopping,
        )
        self._note(self._environment.notes)
        self._compiled.bring(self._environment.folder)

    def use_interface(self, name: str) -> None:
        """Name another interface in the program's configuration and variables."""
        self._plan = replace(self._plan, network=replace(self._plan.network, interface=name))
        self._planned = None
        write_tree(self._plan, self._host, self._tree)

    def make_program_ready(self, log: OutputLog) -> None:
        """Plan the program while the host waits for its order to run; the plan runs no file of the job.

        In a standby host that the program fits, its processes wait from now on for `start_program`; of the job's code
        they call only entry points of `torch.backends`, if it has any. After any error, and if a file of the job must
        be asked, `start_program` makes the plan.
        """
        with contextlib.suppress(Exception):  # boundary: `start_program` plans again and raises
            self._planned = planned = self._plan_of_program(_ask_later)
            if self._standby is not None:
                self._open_output(planned, log)
                self._standby.make_ready(self._plan, planned.sandbox, planned.processes, on_output=log.on_output)

    def start_program(self, log: OutputLog) -> HostProgram:
        """Start every process of this host, its output going to `log`.

        Raises: AgentError, fault USER for a command that its host cannot see; also the errors of the launcher,
        `PipeFeeder.start` and `Program.start`.
        """
        planned = self._planned or self._plan_of_program(self._ask)
        self._context = planned.context
        self._open_output(planned, log)
        feeders = self._start_feeders()
        try:
            if self._standby is None:
                program = Program.start(planned.processes, planned.sandbox, on_output=log.on_output)
            else:
                program = self._standby.start(self._plan, planned.sandbox, planned.processes, on_output=log.on_output)
        except BaseException:
            for feeder in feeders:
                feeder.stop()
            raise
        self._program = HostProgram(
            program,
            planned.sandbox,
            num_processes=len(planned.processes),
            places=self._disk_places(),
            feeders=feeders,
        )
        return self._program

    def _open_output(self, planned: _PlannedProgram, log: OutputLog) -> None:
        for index, process in enumerate(planned.processes):
            log.open(index, rank=process.rank, prefix=_prefix(planned.context, process))

    def _plan_of_program(self, ask: Callable[[ProcessSpec], str]) -> _PlannedProgram:
        assert self._code is not None
        assert self._environment is not None
        inside = inside_tree(self._plan, self._tree)
        python = self._environment.python
        variables = program_variables(
            self._plan,
            self._host,
            inside,
            python=python,
            shims_folder=shims_path(self._host.resources.gpu_indices),
            machine=os.environ,
            brings_wandb_key=self._brings_wandb_key(),
        )
        context = make_context(
            self._plan,
            self._host,
            inside=inside,
            python=python,
            library_folder=str(library_folder(inside)),
            variables=variables,
            entry_point=self._code.entry_point,
            ask=ask,
        )
        launcher = select(context)
        processes = tuple(launcher.build(context))
        self._note(launcher.notes(context))
        self._note(driver_notes(self._plan, self._host, self._tree, python=python, path=variables["PATH"]))
        ssh = self._ssh(variables.get("HOME"), uses_ssh=launcher.uses_ssh)
        sandbox = self._sandbox((*self._binds(self._environment), *ssh))
        if sandbox.isolation is Isolation.NAMESPACES and (reason := why_not_visible(processes, sandbox)):
            raise AgentError(reason, fault=Fault.USER)
        return _PlannedProgram(context=context, processes=processes, sandbox=sandbox)

    def _ask(self, process: ProcessSpec) -> str:
        """Return the output of a program, which may be a file of the job.

        The program runs in a host like that of the job's own program.
        """
        assert self._environment is not None
        deadline_s = time.monotonic() + _ASK_LIMIT_S

        def check() -> None:
            if self._stopping.is_set() or time.monotonic() > deadline_s:
                raise AgentError(f"{process.argv[0]} did not answer within {_ASK_LIMIT_S:g} s")

        try:
            sandbox = self._sandbox(self._binds(self._environment))
            result = run_in_host(process, sandbox, check=check, watch_memory=watch_memory)
            why = result.starved
        except AgentError as error:
            why = error.message
        if not why:
            return result.output
        self._note([f"the kind of {process.argv[0]} could not be determined: {why}"])
        return ""

    def _brings_wandb_key(self) -> bool:
        """Whether the code has the file that `wandb.sagemaker_auth` writes into it."""
        place = (self._tree.code / WANDB_SECRETS).relative_to(self._tree.root)
        return b"WANDB_API_KEY" in (read_start(self._tree.root, place.parts, max_bytes=_SECRETS_BYTES) or b"")

    def open_mirrors(self) -> dict[MirrorPlan, Mirror]:
        """Return the mirrors, not yet started, that copy this host's folders to the store while the program runs."""
        return {place.plan: place.open() for place in self._mirrored}

    def rule_world(self) -> RuleWorld:
        """Return the world of the rules over the program's tensors: a host of their own with the program's files."""
        assert self._context is not None
        assert self._environment is not None
        sandbox = self._sandbox(self._binds(self._environment))
        return make_rule_world(
            self._plan,
            self._context,
            sandbox,
            folder=self._rules_folder,
            tree=self._tree,
            began_at=self._began_at,
        )

    def error_records(self) -> tuple[Clue, ...]:
        """Return the records that ranks have left of their failures."""
        return read_records(self._tree.root, errors_folder(self._tree).relative_to(self._tree.root).parts)

    def announce_stop(self, *, reason: str, grace_s: float) -> None:
        """Write the notice of a stop into the tree."""
        write_stop_notice(self._tree, reason=reason, grace_s=grace_s, clock=SystemClock())

    def failure_file(self) -> str | None:
        """Return the text of the program's failure file, or None without one."""
        place = self._tree.failure.relative_to(self._tree.root)
        data = read_start(self._tree.root, place.parts, max_bytes=_FAILURE_CHARACTERS * _LONGEST_CHARACTER_BYTES)
        return None if data is None else data.decode("utf-8", "backslashreplace")[:_FAILURE_CHARACTERS]

    def upload(self, role: UploadRole, staged: Sequence[StagedPart], *, omits_empty_model: bool = False) -> Uploaded:
        """Write this host's share of the results.

        Args: as `Steps.upload`.
        Raises: as `upload_results`.
        """
        self._stopping.clear()  # an aborted preparation does not prevent the upload of results
        if self._program is not None and self._program.has_succeeded:
            self._note(self._compiled.keep())
        facts = upload_results(
            role,
            plan=self._plan,
            host=self._host.name,
            tree=self._tree,
            store=self._open_store(),
            staged=tuple(staged),
            mounts=self._input.mounts(),
            omits_empty_model=omits_empty_model,
        )
        self._note(facts.notes)
        return Uploaded(staged=facts.staged, uris=facts.uploaded, is_empty=facts.is_empty)

    def abort(self) -> None:
        """Abort a running step: installations end, requests to the object store fail."""
        self._stopping.set()
        with self._lock:
            stores = [store for store in (self._store, self._feed_store) if store is not None]
            self._store = self._feed_store = None
        for store in stores:
            # `close` would wait for a connection that is being opened, and an abort must return at once.
            closer = threading.Thread(target=store.close, name="object-store-closing", daemon=True)
            closer.start()
            self._closers.append(closer)

    def close(self) -> None:
        """Free the resources of the steps; harmless when repeated."""
        self.abort()
        self._input.close()
        if self._checkpoints is not None:
            self._checkpoints.close()
        if self._disk is not None:
            self._disk.close()
        for closer in self._closers:
            closer.join(_CLOSE_S)

    def _disk_places(self) -> Mapping[str, Path]:
        """Return the folders that can become full, by the program's names for them."""
        if self._disk is None:
            return {"/opt/ml and /tmp": self._folder}
        return {"/opt/ml": self._tree.root, "/tmp": self._folder}  # noqa: S108 - a name for people

    def _open_store(self) -> ObjectStore:
        with self._lock:
            self._require_no_abort()
            if self._store is None:
                self._store = ObjectStore(self._plan.object_store, attempts=_STORE_ATTEMPTS)
            return self._store

    def _require_no_abort(self) -> None:
        if self._stopping.is_set():
            raise AgentError(f"{self._host.name} has aborted its current step")

    def _open_feed_store(self) -> ObjectStore:
        with self._lock:
            self._require_no_abort()
            if self._feed_store is None:
                self._feed_store = ObjectStore(self._plan.object_store, attempts=_FEED_ATTEMPTS)
            return self._feed_store

    def _note(self, sentences: Sequence[str]) -> None:
        with self._lock:
            self._notes += [sentence for sentence in sentences if sentence not in self._notes]

    def _share(self, channel: Channel) -> tuple[int, int]:
        """Return this host's index among the hosts that get a channel, and the number of those hosts."""
        names = [host.name for host in self._plan.hosts if channel in channels_of(self._plan, host)]
        return names.index(self._host.name), len(names)

    def _link(self, channel: Channel, source: str) -> None:
        """Show a folder of the machine as a channel by a link if mounts are impossible."""
        place = self._tree.channel(channel.name)
        if place.is_dir() and not place.is_symlink():
            place.rmdir()
        if not place.is_symlink():
            place.symlink_to(source, target_is_directory=True)
        if channel.file_system_access == "ro":
            self._note([f"channel {channel.name}: {source} is not protected from writing on this host"])

    def _start_feeders(self) -> list[PipeFeeder]:
        feeders: list[PipeFeeder] = []
        try:
            for channel in self._channels.values():
                if channel.input_mode is InputMode.PIPE and channel.s3_uri is not None:
                    index, number = self._share(channel)
                    feeder = PipeFeeder(
                        channel,
                        store=self._open_feed_store(),
                        finder=self._open_store(),
                        tree=self._tree,
                        host_index=index,
                        num_hosts=number,
                    )
                    feeder.start()
                    feeders.append(feeder)
        except BaseException:
            for feeder in feeders:
                feeder.stop()
            raise
        return feeders

    def _ssh(self, home: str | None, *, uses_ssh: bool = True) -> tuple[Bind, ...]:
        """Set up ssh between the hosts; return the binds by which this host sees the ssh files.

        Args:
            home: HOME of the program.
            uses_ssh: whether the launcher's processes may use ssh; any other program may start sshd by itself.
        """
        plan = self._plan
        if len(plan.hosts) == 1:
            return ()
        starts_sshd = names_sshd(self._tree.root, self._tree.code.relative_to(self._tree.root).parts)
        if not (uses_ssh or starts_sshd):
            return ()
        by_launchers = "which mpirun and SDK v3's MPI driver start ranks by"
        user = "which the program starts sshd for" if starts_sshd else by_launchers
        if plan.isolation is not Isolation.NAMESPACES:
            if starts_sshd:
                self._note([f"hosts do not reach each other by ssh, {user}: they are plain processes of one machine"])
            return ()
        reason = why_no_ssh(
            has_user_namespace=plan.network.user_namespace_path is not None,
            has_own_network=bool(plan.network.namespace_paths),
        )
        if reason is not None:
            self._note([f"hosts do not reach each other by ssh, {user}: {reason}"])
            return ()
        addresses = {other.name: other.address for other in plan.hosts}
        shared_folder = Path(plan.work_folder) / _SSH_FOLDER
        with disk_errors_named(self._folder, needed_bytes=None):
            return prepare_ssh(shared_folder, self._folder, addresses=addresses, home=home)

    def _installation_world(self) -> InstallationWorld:
        """Return the world in which requirements are installed: a host like the program's later host."""
        plan = self._plan
        python = plan.environment.python
        home, image = hidden_folder(plan), Path(python).parent.parent
        binds = interpreter_binds(image, python, hidden=home)
        if not (image / "pyvenv.cfg").exists() and needs_overlay(image, hidden=home):
            binds = (*binds, Bind(source=str(image.resolve()), target=str(image), read_only=True, keeps_owners=True))
        inside = inside_tree(plan, self._tree)
        # The job's own variables are left out: the installation is kept for other jobs with the same requirements.
        bare = replace(plan, user_environment={})
        variables = service_variables(bare, self._host, inside, python=python, shims_folder="", machine=os.environ)
        own_network = plan.network.namespace_paths.get(self._host.name)
        return InstallationWorld(
            sandbox=self._sandbox(binds),
            watch_memory=watch_memory,
            proxies={name: value for name, value in variables.items() if name.lower() in PROXY_VARIABLES},
            is_offline=plan.isolation is Isolation.NAMESPACES
            and (plan.network_isolation or (plan.proxy_url is None and own_network is not None)),
        )

    def _sandbox(self, binds: tuple[Bind, ...]) -> Sandbox:
        """Return a host of the job; two hosts of one name do not run at the same time."""
        plan, host = self._plan, self._host
        home = hidden_folder(plan)
        return Sandbox(
            isolation=plan.isolation,
            hostname=host.name,
            host_folder=str(self._folder),
            ml_folder=str(self._tree.root),
            network_namespace_path=plan.network.namespace_paths.get(host.name),
            user_namespace_path=plan.network.user_namespace_path,
            mapped_users=plan.network.mapped_users,
            hosts_file={**plan.network.relayed_names, **{other.name: other.address for other in plan.hosts}},
            resources=host.resources if self._disk is None else self._disk.beside(host.resources),
            cgroup_name=host_cgroup_name(plan.job_name, plan.attempt, host=host.name, work_folder=plan.work_folder),
            binds=binds if plan.isolation is Isolation.NAMESPACES else (),
            visible_folders=plan.visible_folders,
            shows_whole_machine=plan.shows_whole_machine,
            hidden_folders=(str(home),) if home is not None else (),
        )

    def _binds(self, environment: PreparedEnvironment) -> tuple[Bind, ...]:
        # Visible at the same path wherever this package lies, even below /tmp, although hosts have a /tmp of their own.
        binds = [Bind(source=str(PACKAGE_FOLDER), target=str(PACKAGE_FOLDER), read_only=True)]
        home = hidden_folder(self._plan)
        # Looked up in the image, not in a copy of the image: a copy may hold a stranger's packages.
        image = Path(self._plan.environment.python).parent.parent
        binds += interpreter_binds(image, self._plan.environment.python, hidden=home)
        prefix, environment_folder = environment.base_prefix, environment.folder
        if prefix and needs_overlay(Path(prefix), hidden=home) and all(bind.target != prefix for bind in binds):
            binds.append(Bind(source=prefix, target=prefix, read_only=True, keeps_owners=True))
        if prefix or needs_overlay(environment_folder, hidden=home):
            # An overlay: pip inside the job changes the environment of this job alone.
            binds.append(Bind(source=str(environment_folder), target=str(environment_folder), overlay=True))
        for channel in self._channels.values():
            if channel.file_system_path is not None:
                target = MlTree(OPT_ML).channel(channel.name)
                is_read_only = channel.file_system_access == "ro"
                binds.append(
                    Bind(
                        source=channel.file_system_path,
                        below=channel.file_system_folder,
                        target=str(target),
                        read_only=is_read_only,
                    )
                )
        if self._plan.shares_hosts:
            seen_at = pool_cache(self._plan, self._host.name, MlTree(OPT_ML))
            binds.append(Bind(source=str(self._pool_cache), target=str(seen_at)))
        if self._checkpoints is not None and self._checkpoints.is_bound:
            binds.append(Bind(source=str(self._checkpoints.folder.path), target=str(self._checkpoints.local_path)))
        binds += [place.bind for place in self._mirrored if place.bind is not None]
        binds += self._input.binds()
        return tuple(binds)


def _ask_later(process: ProcessSpec) -> str:
    raise AgentError(f"{process.argv[0]} runs only after the order to run")


def service_home(plan: LaunchPlan) -> Path | None:
    """Return the service's folder, which contains `jobs`; None if work_folder is not inside such a folder."""
    # <home>/jobs/<job>/<attempt>; a job may be called "jobs" too.
    parents = Path(plan.work_folder).parents
    return parents[2] if len(parents) > 2 and parents[1].name == JOBS_FOLDER else None


def hidden_folder(plan: LaunchPlan) -> Path | None:
    """Return the folder to hide from programs: the service's home, or on a node the folder `clary-UID` of its user.

    On a node, <scratch>/clary-UID/NODE/hosts/TAG-INDEX-PID holds `jobs` (`agent.boot`). `clary-UID` also contains the
    folders of other hosts, and the code of future agents.
    """
    home = service_home(plan)
    if home is None:
        return None
    is_of_node = home.parent.name == "hosts" and len(home.parents) > 2 and home.parents[2].name.startswith("clary-")
    return home.parents[2] if is_of_node else home


def _prefix(context: LaunchContext, process: ProcessSpec) -> str:
    """Return the prefix of each line of a rank, as mpirun of SageMaker's containers writes it, or an empty string."""
    is_tagged = context.plan.command is None and context.distribution.kind in _TAGGED_KINDS
    if process.rank is None or not is_tagged:
        return ""
    return f"[1,mpirank:{process.rank},{context.host.name}]<stdout>:"
