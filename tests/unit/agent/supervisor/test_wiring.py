"""The default steps themselves: paths, shares, marks of ranks, and untrusted files."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from clary.agent.environments.requirements import PreparedEnvironment
from clary.agent.environments.variables import program_variables
from clary.agent.host.sandbox import ProcessSpec
from clary.agent.small_files import read_start
from clary.agent.supervisor import wiring
from clary.agent.supervisor.steps import Steps
from clary.agent.supervisor.wiring import HostSteps, hidden_folder, service_home
from clary.base.errors import AgentError, ClaryError
from clary.contract.launch_plan import Channel, Endpoint, InputMode, Isolation, LaunchPlan
from clary.contract.object_store import ObjectStore
from clary.testing.launch_plans import make_hosts, make_plan


class FakeLog:
    """Records the prefixes with which streams were marked."""

    def __init__(self) -> None:
        self.streams: dict[object, tuple[int | None, str]] = {}
        self.data: list[bytes] = []

    def open(self, key: object, *, rank: int | None = None, prefix: str = "") -> None:
        self.streams[key] = (rank, prefix)

    def on_output(self, key: object, data: bytes) -> None:
        self.data.append(data)


def plan_in(folder: Path, **changes: object) -> LaunchPlan:
    plan = make_plan(
        **{
            "job_name": f"wiring-{os.getpid()}-{time.monotonic_ns()}",
            "isolation": Isolation.PROCESSES,
            "work_folder": str(folder / "jobs" / "job-1" / "1"),
            "cache_folder": str(folder / "cache"),
            **changes,
        }
    )
    return replace(plan, environment=replace(plan.environment, python=sys.executable))


@pytest.fixture
def steps_of(tmp_path: Path) -> Iterator[object]:
    made: list[HostSteps] = []

    def build(host: str = "algo-1", **changes: object) -> HostSteps:
        made.append(HostSteps(plan_in(tmp_path, **changes), host))
        return made[-1]

    yield build
    for steps in made:
        steps.close()
        steps.close()


def test_the_default_steps_implement_the_protocol(steps_of) -> None:
    steps: Steps = steps_of()
    missing = [name for name in vars(Steps) if not name.startswith("_") and not hasattr(steps, name)]
    assert missing == []


@pytest.mark.parametrize(
    ("work_folder", "home"),
    [("/var/clary/jobs/j/1", "/var/clary"), ("/jobs/home/jobs/jobs/1", "/jobs/home"), ("/somewhere/else", None)],
)
def test_the_services_home_is_the_folder_that_holds_jobs(work_folder: str, home: str | None) -> None:
    assert service_home(make_plan(work_folder=work_folder)) == (None if home is None else Path(home))


@pytest.mark.parametrize(
    ("work_folder", "hidden"),
    [
        ("/var/clary/jobs/j/1", "/var/clary"),
        ("/opt/scratch/clary-1000/n7/hosts/pool_0123456789ab-1-77/jobs/j/1", "/opt/scratch/clary-1000"),
        ("/srv/hosts/clary/jobs/j/1", "/srv/hosts/clary"),
        ("/somewhere/else", None),
    ],
)
def test_programs_see_nothing_of_the_service_or_of_other_hosts_of_their_node(
    work_folder: str, hidden: str | None
) -> None:
    assert hidden_folder(make_plan(work_folder=work_folder)) == (None if hidden is None else Path(hidden))


def test_the_failure_file_is_cut_to_the_length_of_a_failure_reason(steps_of) -> None:
    steps = steps_of()
    steps.build_tree()
    assert steps.failure_file() is None
    failure = steps._tree.failure
    failure.write_bytes("\u00e4".encode() * 3000 + b"\xff")
    assert steps.failure_file() == "\u00e4" * 1024
    failure.write_bytes(b"bad \xff byte")
    assert steps.failure_file() == "bad \\xff byte"


def test_nothing_but_a_plain_file_inside_the_tree_is_read(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("of the machine")
    root = tmp_path / "ml"
    (root / "output").mkdir(parents=True)
    place = root / "output" / "failure"
    place.symlink_to(secret)
    assert read_start(root, ("output", "failure"), max_bytes=10) is None
    place.unlink()
    os.mkfifo(place)
    assert read_start(root, ("output", "failure"), max_bytes=10) is None
    place.unlink()
    place.mkdir()
    assert read_start(root, ("output", "failure"), max_bytes=10) is None
    place.rmdir()
    place.write_text("plain words")
    assert read_start(root, ("output", "failure"), max_bytes=5) == b"plain"
    (root / "output").rename(tmp_path / "moved")
    (root / "output").symlink_to(tmp_path / "moved")
    assert read_start(root, ("output", "failure"), max_bytes=5) is None


def test_another_interface_is_set_in_the_configuration_and_the_variables(steps_of) -> None:
    steps = steps_of(isolation=Isolation.NAMESPACES, hosts=make_hosts(2))
    steps.build_tree()

    def named() -> set[str]:
        file = json.loads((steps._tree.config / "resourceconfig.json").read_text())["network_interface_name"]
        variables = program_variables(
            steps._plan, steps._host, steps._tree, python=sys.executable, shims_folder="/shims", machine={}
        )
        names = ("SM_NETWORK_INTERFACE_NAME", "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
        return {file, *(variables[name] for name in names)}

    assert named() == {"eth0"}
    steps.use_interface("eth1")
    assert named() == {"eth1"}


def test_a_share_counts_only_hosts_that_get_the_channel(steps_of) -> None:
    hosts = make_hosts(3, isolation=Isolation.PROCESSES)
    hosts = (replace(hosts[0], instance_group="other"), *hosts[1:])
    channel = Channel(name="train", s3_uri="s3://b/p", instance_groups=("homogeneousCluster",))
    assert steps_of("algo-3", hosts=hosts, channels=(channel,))._share(channel) == (1, 2)
    assert steps_of("algo-1", hosts=hosts, channels=(channel,)).channel_names == ()


def test_a_folder_of_the_machine_is_shown_as_a_channel(steps_of, tmp_path: Path) -> None:
    source = tmp_path / "data"
    source.mkdir()
    (source / "file").write_text("content")
    steps = steps_of(channels=(Channel(name="train", s3_uri=None, file_system_path=str(source)),))
    steps.build_tree()
    steps.fetch_channel("train")
    steps.fetch_channel("train")
    assert (steps._tree.channel("train") / "file").read_text() == "content"
    assert "not protected from writing" in steps.notes[0]


def test_hosts_see_this_installation_at_its_own_path_and_cannot_change_it(steps_of) -> None:
    steps = steps_of()
    steps.build_tree()
    library = steps._tree.root / ".clary" / "python"
    target = (library / "clary" / "train").readlink()
    environment = PreparedEnvironment(python=sys.executable, folder=Path(sys.prefix), seconds=0.0, was_cached=True)
    binds = [bind for bind in steps._binds(environment) if Path(bind.target) in target.parents]
    assert binds
    assert {(bind.source == bind.target, bind.read_only) for bind in binds} == {(True, True)}


def test_folders_named_by_a_pth_file_in_a_copy_are_not_shown(steps_of, tmp_path: Path) -> None:
    """A .pth file in a copy of an environment is untrusted: hosts do not show the folder that it names."""
    private, copy = tmp_path / "private", tmp_path / "copy"
    library = copy / "lib" / "python3.11" / "site-packages"
    for folder in (private, library):
        folder.mkdir(parents=True)
    (library / "x.pth").write_text(f"{private}\n")
    (copy / "pyvenv.cfg").write_text(f"home = {private}/bin\n")
    environment = PreparedEnvironment(
        python=f"{copy}/bin/python", folder=copy, seconds=0.0, was_cached=True, base_prefix=sys.base_prefix
    )
    steps = steps_of()
    steps.build_tree()
    binds = steps._binds(environment)
    assert [bind.overlay for bind in binds if bind.source == str(copy)] == [True]
    assert not [bind for bind in binds if private == Path(bind.source) or private in Path(bind.source).parents]


@pytest.mark.parametrize(
    ("hyperparameters", "prefix"),
    [
        ({"sagemaker_pytorch_ddp_enabled": "true"}, "[1,mpirank:0,algo-1]<stdout>:"),
        ({"sagemaker_torch_distributed_enabled": "true"}, ""),
    ],
)
def test_ranks_are_marked_as_their_originals_do(steps_of, hyperparameters: dict[str, str], prefix: str) -> None:
    steps = steps_of(hyperparameters={"sagemaker_program": "train.py", **hyperparameters})
    steps.build_tree()
    steps._tree.code.mkdir(exist_ok=True)
    (steps._tree.code / "train.py").write_text("print('hi')")
    steps.fetch_code()
    steps.prepare_environment()
    log = FakeLog()
    program = steps.start_program(log)
    try:
        exits = program.wait_for_exits(20.0)
        assert len(exits) == program.num_processes == 1
        assert program.num_live() == 0
        assert [mark for _, mark in log.streams.values()] == [prefix]
        assert b"hi" in b"".join(log.data)
    finally:
        program.close()
        program.close()
    assert program.wait_for_exits(0.0) == []


def prepared_steps(steps_of, script: str) -> HostSteps:
    steps = steps_of(hyperparameters={"sagemaker_program": "train.py"})
    steps.build_tree()
    steps._tree.code.mkdir(exist_ok=True)
    (steps._tree.code / "train.py").write_text(script)
    steps.fetch_code()
    steps.prepare_environment()
    return steps


def test_a_program_is_started_as_it_was_planned(steps_of, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = prepared_steps(steps_of, "import os; print('port', os.environ['MASTER_PORT'])")
    steps.make_program_ready(FakeLog())
    monkeypatch.setattr(steps, "_plan_of_program", lambda _ask: pytest.fail("planned again"))
    log = FakeLog()
    program = steps.start_program(log)
    try:
        assert [end.exit_code for end in program.wait_for_exits(20.0)] == [0]
        assert b"port " in b"".join(log.data)
    finally:
        program.close()


class FakeKeeper:
    """Records the program that it lets wait."""

    def __init__(self) -> None:
        self.waiting: list[tuple[LaunchPlan, object, Sequence[ProcessSpec]]] = []

    def folder_for(self, _plan: LaunchPlan) -> Path | None:
        return None

    def make_ready(
        self, plan: LaunchPlan, sandbox: object, processes: Sequence[ProcessSpec], **_options: object
    ) -> None:
        self.waiting.append((plan, sandbox, processes))


@pytest.mark.parametrize("fails", [False, True])
def test_on_machines_of_a_pool_the_planned_program_waits_for_its_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    keeper, log = FakeKeeper(), FakeLog()
    steps = HostSteps(plan_in(tmp_path), "algo-1", standby=keeper)  # type: ignore[arg-type]
    planned = wiring._PlannedProgram(
        context=object(),  # type: ignore[arg-type]
        processes=(ProcessSpec(argv=("x",), environment={}, working_folder="/", rank=7, local_rank=0),),
        sandbox=object(),  # type: ignore[arg-type]
    )
    monkeypatch.setattr(wiring, "_prefix", lambda *_: "p ")

    def plan_it(_ask: object) -> object:
        if fails:
            raise AgentError("no launcher fits")
        return planned

    monkeypatch.setattr(steps, "_plan_of_program", plan_it)
    steps.make_program_ready(log)
    steps.close()
    assert keeper.waiting == ([] if fails else [(steps._plan, planned.sandbox, planned.processes)])
    assert log.streams == ({} if fails else {0: (7, "p ")})


def test_another_interface_discards_the_plan_of_the_program(steps_of) -> None:
    steps = prepared_steps(steps_of, "")
    steps.make_program_ready(FakeLog())
    assert steps._planned is not None
    steps.use_interface("eth7")
    assert steps._planned is None


def test_no_file_of_the_job_runs_before_the_order(steps_of, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = prepared_steps(steps_of, "")
    monkeypatch.setattr(steps, "_ask", lambda _process: pytest.fail("asked"))
    process = ProcessSpec(argv=("/opt/ml/code/mpirun",), environment={}, working_folder="/", rank=None, local_rank=0)
    monkeypatch.setattr(wiring, "make_context", lambda *_args, ask, **_options: ask(process))
    steps.make_program_ready(FakeLog())
    assert steps._planned is None


def test_a_command_runs_with_the_shims_of_its_host_and_the_notes_on_its_driver(
    steps_of, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, str]] = []

    def note(_plan: object, _host: object, tree: object, *, python: str, path: str) -> tuple[str, ...]:
        asked.append((python, path))
        return (f"looked into {tree.root}",)

    monkeypatch.setattr(wiring, "driver_notes", note)
    monkeypatch.setattr(wiring, "shims_path", lambda gpus: f"/gpu-shims{gpus}:/shims")
    steps = steps_of(command=("sh", "-c", "true"), hosts=make_hosts(1, gpu_indices=(4, 5)))
    steps.build_tree()
    steps.fetch_code()
    steps.prepare_environment()
    planned = steps._plan_of_program(lambda _process: pytest.fail("asked"))
    variables = planned.processes[0].environment
    assert variables["PATH"].startswith("/gpu-shims(4, 5):/shims:")
    assert variables["CLARY_HOST_GPUS"] == "4,5"
    assert asked == [(sys.executable, variables["PATH"])]
    assert f"looked into {steps.ml_folder}" in steps.notes


def test_an_error_of_the_plan_is_raised_by_the_start(steps_of, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_args: object, **_options: object) -> None:
        raise AgentError("no launcher fits")

    steps = prepared_steps(steps_of, "")
    monkeypatch.setattr(wiring, "make_context", refuse)
    steps.make_program_ready(FakeLog())
    with pytest.raises(AgentError, match="no launcher fits"):
        steps.start_program(FakeLog())


@pytest.mark.parametrize(("secrets", "mode"), [(None, b"offline"), (b"WANDB_API_KEY=mine\n", b"none")])
def test_code_that_brings_a_key_of_wandb_is_not_put_offline(steps_of, secrets: bytes | None, mode: bytes) -> None:
    steps = steps_of(hyperparameters={"sagemaker_program": "train.py"})
    steps.build_tree()
    steps._tree.code.mkdir(exist_ok=True)
    (steps._tree.code / "train.py").write_text("import os; print('mode', os.environ.get('WANDB_MODE', 'none'))")
    if secrets is not None:
        (steps._tree.code / "secrets.env").write_bytes(secrets)
    steps.fetch_code()
    steps.prepare_environment()
    log = FakeLog()
    program = steps.start_program(log)
    try:
        program.wait_for_exits(60.0)
        assert b"mode " + mode in b"".join(log.data)
    finally:
        program.close()


@pytest.mark.parametrize(
    ("num_hosts", "isolation", "num_notes"),
    [(2, Isolation.NAMESPACES, 1), (1, Isolation.NAMESPACES, 0), (2, Isolation.PROCESSES, 0)],
)
def test_hosts_without_ssh_note_the_reason(steps_of, num_hosts: int, isolation: Isolation, num_notes: int) -> None:
    own = {f"algo-{number}": "/proc/1/ns/net" for number in (1, 2)}
    network = replace(make_plan().network, user_namespace_path="/proc/1/ns/user", namespace_paths=own)
    steps = steps_of(hosts=make_hosts(num_hosts), isolation=isolation, network=network)
    assert steps._ssh("/opt/ml/home") == ()
    assert len(steps.notes) == num_notes
    assert all("without root" in note for note in steps.notes)


def test_hosts_on_the_network_of_their_nodes_note_that_they_have_no_ssh(steps_of) -> None:
    steps = steps_of(hosts=make_hosts(2), isolation=Isolation.NAMESPACES)
    assert steps._ssh("/opt/ml/home") == ()
    (note,) = steps.notes
    assert "port 22 is not theirs" in note


@pytest.mark.parametrize(
    ("name", "text", "is_noted"),
    [
        ("train.py", "import subprocess\nsubprocess.Popen(['/usr/sbin/sshd', '-D'])\n", True),
        ("tools/start/prepare.sh", "#!/bin/bash\nservice ssh start\n", True),
        ("train.py", "import os\nos.system('/etc/init.d/ssh start')\n", True),
        ("train.py", "print('ssh, and what it needs')\n", False),
        ("notes.txt", "/usr/sbin/sshd\n", False),
    ],
)
@pytest.mark.parametrize("isolation", list(Isolation))
def test_a_script_that_starts_sshd_gets_ssh_or_the_reason(
    steps_of, isolation: Isolation, name: str, text: str, is_noted: bool
) -> None:
    steps = steps_of(hosts=make_hosts(2), isolation=isolation)
    steps.build_tree()
    path = steps._tree.code / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    assert steps._ssh("/opt/ml/home", uses_ssh=False) == ()
    assert len(steps.notes) == is_noted
    assert all("which the program starts sshd for" in note for note in steps.notes)


@pytest.mark.parametrize(("text", "has_ssh"), [("os.system('sshd')", True), ("print(1)", False)])
def test_hosts_of_a_plain_program_have_the_files_of_ssh_if_it_starts_sshd(
    steps_of, monkeypatch: pytest.MonkeyPatch, text: str, has_ssh: bool
) -> None:
    steps = steps_of(hosts=make_hosts(2), isolation=Isolation.NAMESPACES)
    monkeypatch.setattr(wiring, "why_no_ssh", lambda **_: None)
    monkeypatch.setattr(wiring, "prepare_ssh", lambda *_, addresses, home: tuple(addresses))
    steps.build_tree()
    steps._tree.code.mkdir(exist_ok=True)
    (steps._tree.code / "train.py").write_text(f"import os\n{text}\n")
    assert steps._ssh("/opt/ml/home", uses_ssh=False) == (("algo-1", "algo-2") if has_ssh else ())
    assert steps._ssh("/opt/ml/home") == ("algo-1", "algo-2")


def test_abort_ends_a_step_that_waits_for_the_object_store(steps_of, monkeypatch: pytest.MonkeyPatch) -> None:
    channel = Channel(name="train", s3_uri="s3://bucket/prefix")
    plan = make_plan()
    # refuses connections: the store client retries for seconds
    silent = replace(plan.object_store, url="http://127.0.0.1:1")
    steps = steps_of(channels=(channel,), object_store=silent)
    steps.build_tree()
    errors: list[Exception] = []

    def fetch() -> None:
        try:
            steps.fetch_channel("train")
        except ClaryError as error:
            errors.append(error)

    thread = threading.Thread(target=fetch)
    thread.start()
    time.sleep(0.1)
    started_s = time.monotonic()
    steps.abort()
    thread.join(10)
    assert errors
    assert time.monotonic() - started_s < 3.0
    with pytest.raises(ClaryError, match="has aborted its current step"):
        steps.fetch_channel("train")


def test_the_floors_of_the_agent_meet_in_few_files() -> None:
    folder = Path(wiring.__file__).parent
    floors = ("artifacts", "channels", "environments", "launchers", "host", "object_store")
    users = {
        path.name
        for path in folder.glob("*.py")
        if any(f"from clary.agent.{floor}" in path.read_text() for floor in floors)
    }
    assert users == {
        "wiring.py",
        "host_channels.py",
        "host_program.py",
        "standby_keeping.py",
    }


def test_a_pipe_outlasts_a_store_that_is_away_for_minutes_and_the_start_waits_as_long_as_other_steps(
    steps_of, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[tuple[int, ObjectStore]] = []

    def open_store(endpoint: Endpoint, *, attempts: int) -> ObjectStore:
        made.append((attempts, ObjectStore(endpoint, attempts=attempts)))
        return made[-1][1]

    feeders: list[dict[str, object]] = []

    class Feeder:
        def __init__(self, channel: Channel, **given: object) -> None:
            feeders.append(given)

        def start(self) -> None:
            pass

    monkeypatch.setattr(wiring, "ObjectStore", open_store)
    monkeypatch.setattr(wiring, "PipeFeeder", Feeder)
    channel = Channel(name="training", s3_uri="s3://bucket/x/", input_mode=InputMode.PIPE)
    steps = steps_of(channels=(channel,))
    steps._start_feeders()
    (given,) = feeders
    attempts_of = {id(store): attempts for attempts, store in made}
    assert attempts_of[id(given["store"])] == wiring._FEED_ATTEMPTS > attempts_of[id(given["finder"])]
    steps.close()
    assert all(store._exchange.is_closed for _, store in made)
