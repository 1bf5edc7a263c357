"""The user's code: where it comes from, what of it is started, and what is refused."""

import io
import json
import os
import tarfile
from pathlib import Path

import pytest

from clary.agent.environments.code import code_channel, prepare_code
from clary.contract.entry_points import EntryKind
from clary.contract.errors import AgentError, Fault
from clary.contract.ml_tree import MlTree
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


def test_code_from_a_folder_of_the_host(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "run.sh").write_text("echo hi")
    (source / "requirements.txt").write_text("six")
    plan = plan_of("run.sh", str(source))
    facts = prepare_code(plan, FakeStore(), MlTree(tmp_path / "ml"))
    assert code_channel(plan) is None
    assert facts.entry_point.kind is EntryKind.COMMAND
    assert os.access(tmp_path / "ml" / "code" / "run.sh", os.X_OK)
    assert facts.requirements_file is None
    assert "as on SageMaker" in facts.notes[0]


def test_folder_with_setup_py_is_a_package(tmp_path: Path) -> None:
    store = FakeStore({"b/k": archive({"setup.py": "", "pkg/train.py": ""})})
    facts = prepare_code(plan_of("pkg/train.py", "s3://b/k"), store, MlTree(tmp_path))
    assert facts.entry_point.kind is EntryKind.PACKAGE
    assert facts.entry_point.module == "pkg.train"
    assert facts.package_folder == tmp_path / "code"


def test_missing_entry_point_names_it_and_what_the_archive_holds(tmp_path: Path) -> None:
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


def test_program_without_source_says_so(tmp_path: Path) -> None:
    with pytest.raises(AgentError, match="sagemaker_submit_directory is not set"):
        prepare_code(plan_of("train.py", None), FakeStore(), MlTree(tmp_path))


def test_source_that_is_not_there_is_the_users_error(tmp_path: Path) -> None:
    with pytest.raises(AgentError, match="no such file or folder") as info:
        prepare_code(plan_of("train.py", "/opt/ml/input/data/code/x.tar.gz"), FakeStore(), MlTree(tmp_path))
    assert info.value.fault is Fault.USER
    with pytest.raises(AgentError, match="expected s3://bucket/key or an absolute path"):
        prepare_code(plan_of("train.py", "code"), FakeStore(), MlTree(tmp_path))


def test_jobs_with_a_command_or_without_a_program_have_no_entry_point(tmp_path: Path) -> None:
    assert prepare_code(plan_of(None, None), FakeStore(), MlTree(tmp_path)).entry_point is None
    with_command = plan_of("train.py", "s3://b/k", command=("/bin/bash",))
    assert prepare_code(with_command, FakeStore(), MlTree(tmp_path)).entry_point is None


def test_names_with_spaces_and_unicode_work(tmp_path: Path) -> None:
    store = FakeStore({"b/k": archive({"my tr\u00e4in.py": "1"})})
    assert prepare_code(plan_of("my tr\u00e4in.py", "s3://b/k"), store, MlTree(tmp_path)).entry_point is not None
