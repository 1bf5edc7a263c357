"""The user's code: its source, its entry point, and refusals."""

import io
import json
import os
import tarfile
from pathlib import Path

import pytest

from clary.agent.environments.code import code_channel, prepare_code
from clary.base.errors import AgentError, Fault
from clary.contract.launch_plan import Channel, Environment
from clary.contract.ml_tree import MlTree
from clary.contract.settings.entry_points import EntryKind
from clary.testing.launch_plans import make_plan


def archive(files: dict[str, str]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(text.encode())
            tar.addfile(member, io.BytesIO(text.encode()))
    return buffer.getvalue()


class FakeStore:
    def __init__(self, objects: dict[str, bytes] | None = None) -> None:
        self.objects = objects or {}
        self.readers: list[io.BytesIO] = []

    def open_reader(self, bucket: str, key: str) -> io.BytesIO:
        self.readers.append(io.BytesIO(self.objects[f"{bucket}/{key}"]))
        return self.readers[-1]


def plan_of(program: str | None, source: str | None, *, quoted: bool = True, **fields: object):
    encode = json.dumps if quoted else str
    hyperparameters = {}
    if program is not None:
        hyperparameters["sagemaker_program"] = encode(program)
    if source is not None:
        hyperparameters["sagemaker_submit_directory"] = encode(source)
    return make_plan(hyperparameters=hyperparameters, **fields)


@pytest.mark.parametrize("quoted", [True, False])
def test_code_from_s3_in_both_dialects(tmp_path: Path, quoted: bool) -> None:
    store = FakeStore({"b/x/sourcedir.tar.gz": archive({"train.py": "print(1)", "requirements.txt": "six"})})
    facts = prepare_code(plan_of("train.py", "s3://b/x/sourcedir.tar.gz", quoted=quoted), store, MlTree(tmp_path))
    assert facts.entry_point is not None
    assert (facts.entry_point.name, facts.entry_point.kind) == ("train.py", EntryKind.SCRIPT)
    assert (tmp_path / "code" / "train.py").read_text() == "print(1)"
    assert facts.requirements_file == tmp_path / "code" / "requirements.txt"
    assert store.readers[0].closed


def test_code_from_an_archive_in_a_channel(tmp_path: Path) -> None:
    tree = MlTree(tmp_path)
    tree.channel("code").mkdir(parents=True)
    (tree.channel("code") / "sourcedir.tar.gz").write_bytes(archive({"src/train.py": "1"}))
    plan = plan_of("src/train.py", "/opt/ml/input/data/code/sourcedir.tar.gz")
    assert code_channel(plan) == "code"
    assert prepare_code(plan, FakeStore(), tree).entry_point.name == "src/train.py"


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_code_from_a_folder_of_a_channel(tmp_path: Path, scheme: str) -> None:
    tree = MlTree(tmp_path)
    source = tree.channel("code") / "source"
    source.mkdir(parents=True)
    (source / "run.sh").write_text("echo hi")
    (source / "requirements.txt").write_text("six")
    plan = plan_of("run.sh", f"{scheme}/opt/ml/input/data/code/source")
    facts = prepare_code(plan, FakeStore(), tree)
    assert code_channel(plan) == "code"
    assert facts.entry_point.kind is EntryKind.COMMAND
    assert os.access(tree.code / "run.sh", os.X_OK)
    assert facts.requirements_file is None
    assert "as on SageMaker" in facts.notes[0]


def test_the_variable_names_the_program_and_wins_over_the_hyperparameter(tmp_path: Path) -> None:
    store = FakeStore({"b/k": archive({"train.py": "", "other.py": "", "run.sh": ""})})
    told = {"SAGEMAKER_PROGRAM": "other.py"}
    for program in (None, "train.py"):
        plan = plan_of(program, "s3://b/k", user_environment=told)
        assert prepare_code(plan, store, MlTree(tmp_path)).entry_point.name == "other.py"
    image = Environment(name="e", python="/env/bin/python", image="i", variables={"SAGEMAKER_PROGRAM": "run.sh"})
    plan = plan_of(None, "s3://b/k", environment=image)
    assert prepare_code(plan, store, MlTree(tmp_path)).entry_point.name == "run.sh"
    plan = plan_of(None, "s3://b/k", environment=image, user_environment=told)
    assert prepare_code(plan, store, MlTree(tmp_path)).entry_point.name == "other.py"


def test_an_empty_variable_names_no_program_and_a_command_needs_none(tmp_path: Path) -> None:
    store = FakeStore({"b/k": archive({"train.py": ""})})
    plan = plan_of("train.py", "s3://b/k", user_environment={"SAGEMAKER_PROGRAM": ""})
    assert prepare_code(plan, store, MlTree(tmp_path)).entry_point.name == "train.py"
    plan = plan_of(None, None, user_environment={"SAGEMAKER_PROGRAM": "../x.py"}, command=("sh", "run.sh"))
    assert prepare_code(plan, store, MlTree(tmp_path)).entry_point is None


@pytest.mark.parametrize(("program", "words"), [("absent.py", "names 'absent.py'"), ("../t.py", ": the entry point")])
def test_errors_say_that_the_variable_names_the_program(tmp_path: Path, program: str, words: str) -> None:
    store = FakeStore({"b/k": archive({"train.py": ""})})
    plan = plan_of("train.py", "s3://b/k", user_environment={"SAGEMAKER_PROGRAM": program})
    with pytest.raises(AgentError, match=f"Environment's SAGEMAKER_PROGRAM ?{words}") as info:
        prepare_code(plan, store, MlTree(tmp_path))
    assert info.value.fault is Fault.USER


def test_a_variable_without_code_is_left_to_the_images_own_program(tmp_path: Path) -> None:
    plan = plan_of(None, None, user_environment={"SAGEMAKER_PROGRAM": "train.py"})
    assert prepare_code(plan, FakeStore(), MlTree(tmp_path)).entry_point is None


def test_folder_with_setup_py_is_a_package(tmp_path: Path) -> None:
    store = FakeStore({"b/k": archive({"setup.py": "", "pkg/train.py": ""})})
    facts = prepare_code(plan_of("pkg/train.py", "s3://b/k"), store, MlTree(tmp_path))
    assert facts.entry_point.kind is EntryKind.PACKAGE
    assert facts.entry_point.module == "pkg.train"
    assert facts.package_folder == tmp_path / "code"


def test_a_missing_entry_point_is_named_with_the_content_of_the_archive(tmp_path: Path) -> None:
    store = FakeStore({"b/k": archive({"main.py": "", "lib/util.py": ""})})
    with pytest.raises(
        AgentError, match=r"'train.py', which is not in s3://b/k: it holds main.py, lib/util.py"
    ) as info:
        prepare_code(plan_of("train.py", "s3://b/k"), store, MlTree(tmp_path))
    assert info.value.fault is Fault.USER


def test_long_archives_are_listed_in_part(tmp_path: Path) -> None:
    store = FakeStore({"b/k": archive({f"f{n:03}.py": "" for n in range(100)})})
    with pytest.raises(AgentError, match=r"f011.py and more") as info:
        prepare_code(plan_of("train.py", "s3://b/k"), store, MlTree(tmp_path))
    assert "f012" not in info.value.message


@pytest.mark.parametrize("program", ["../train.py", "/etc/passwd", "-c", "a/../../b.py", "x\0.py"])
def test_names_that_leave_the_code_folder_are_refused(tmp_path: Path, program: str) -> None:
    store = FakeStore({"b/k": archive({"train.py": ""})})
    with pytest.raises(AgentError, match="sagemaker_program") as info:
        prepare_code(plan_of(program, "s3://b/k"), store, MlTree(tmp_path))
    assert info.value.fault is Fault.USER


def test_a_program_without_source_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(AgentError, match="sagemaker_submit_directory is not set"):
        prepare_code(plan_of("train.py", None), FakeStore(), MlTree(tmp_path))


def test_source_that_is_not_there_is_the_users_error(tmp_path: Path) -> None:
    with pytest.raises(AgentError, match="No such file or directory") as info:
        prepare_code(plan_of("train.py", "/opt/ml/input/data/code/x.tar.gz"), FakeStore(), MlTree(tmp_path))
    assert info.value.fault is Fault.USER


@pytest.mark.parametrize(
    "source",
    ["code", "{machine}", "file://{machine}", "/", "/opt", "/opt/ml/../../{machine}", "file:///etc", "FILE:///etc",
     "file://localhost/opt/ml/code", "//opt/ml/code/../../../etc", "/proc/self/cwd", "/opt/mlx"],
)  # fmt: skip
def test_files_of_the_machine_never_become_the_code_of_a_job(tmp_path: Path, source: str) -> None:
    machine = tmp_path / "machine"
    machine.mkdir()
    (machine / "root.json").write_text("keys")
    tree = MlTree(tmp_path / "ml")
    with pytest.raises(AgentError, match="expected s3://bucket/key or a path below /opt/ml") as info:
        prepare_code(plan_of("root.json", source.format(machine=machine)), FakeStore(), tree)
    assert info.value.fault is Fault.USER
    assert list(tree.code.iterdir()) == []


@pytest.mark.parametrize("place", ["code", "code/source", "code/source/train.py"])
def test_links_on_the_way_to_the_code_are_not_followed(tmp_path: Path, place: str) -> None:
    machine = tmp_path / "machine"
    (machine / "source").mkdir(parents=True)
    for name in ("train.py", "source/train.py"):
        (machine / name).write_text("keys")
    tree = MlTree(tmp_path / "ml")
    link = tree.data / place
    link.parent.mkdir(parents=True)
    link.symlink_to(machine / "train.py" if place.endswith(".py") else machine)
    with pytest.raises(AgentError, match="symbolic link"):
        prepare_code(plan_of("train.py", "/opt/ml/input/data/code/source/train.py"), FakeStore(), tree)
    assert list(tree.code.iterdir()) == []


@pytest.mark.parametrize("name", ["train.py", "requirements.txt"])
def test_code_that_is_a_link_out_of_its_folder_is_not_read(tmp_path: Path, name: str) -> None:
    (tmp_path / "keys").write_text("keys")
    tree = MlTree(tmp_path / "ml")
    source = tree.channel("code")
    source.mkdir(parents=True)
    (source / "train.py").write_text("1")
    (source / name).unlink(missing_ok=True)
    (source / name).symlink_to(tmp_path / "keys")
    with pytest.raises(AgentError, match=f"'{name}' is a link that leads out of the source folder"):
        prepare_code(plan_of("train.py", "/opt/ml/input/data/code"), FakeStore(), tree)


def test_code_in_a_file_system_is_read_below_its_folder(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    (shared / "sets" / "src").mkdir(parents=True)
    (shared / "sets" / "src" / "train.py").write_text("1")
    (shared / "sets" / "out").symlink_to("/etc")
    channel = Channel(name="fs", s3_uri=None, file_system_path=str(shared), file_system_folder="sets")
    tree = MlTree(tmp_path / "ml")
    plan = plan_of("train.py", "/opt/ml/input/data/fs/src", channels=(channel,))
    assert prepare_code(plan, FakeStore(), tree).entry_point is not None
    assert (tree.code / "train.py").read_text() == "1"
    plan = plan_of("passwd", "/opt/ml/input/data/fs/out", channels=(channel,))
    with pytest.raises(AgentError, match="symbolic link"):
        prepare_code(plan, FakeStore(), tree)


def test_a_source_that_holds_the_folder_of_the_code_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AgentError, match="contains the folder"):
        prepare_code(plan_of("train.py", "/opt/ml"), FakeStore(), MlTree(tmp_path))


def test_jobs_with_a_command_or_without_a_program_have_no_entry_point(tmp_path: Path) -> None:
    assert prepare_code(plan_of(None, None), FakeStore(), MlTree(tmp_path)).entry_point is None
    with_command = plan_of("train.py", "s3://b/k", command=("/bin/bash",))
    assert prepare_code(with_command, FakeStore(), MlTree(tmp_path)).entry_point is None


def test_names_with_spaces_and_unicode_work(tmp_path: Path) -> None:
    store = FakeStore({"b/k": archive({"my tr\u00e4in.py": "1"})})
    assert prepare_code(plan_of("my tr\u00e4in.py", "s3://b/k"), store, MlTree(tmp_path)).entry_point is not None
