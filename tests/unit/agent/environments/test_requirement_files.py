"""Untrusted requirement files: the lines that are read, their limits, and the inputs of an installation."""

import os
from pathlib import Path

import pytest

from clary.agent.environments.interpreter import InterpreterFacts
from clary.agent.environments.requirement_files import (
    MAX_DEPTH,
    MAX_FILE_BYTES,
    MAX_FILES,
    RequirementFiles,
    installation_key,
    read_requirements,
    source_digest,
)
from clary.base.errors import AgentError, Fault

FACTS = InterpreterFacts(
    python="/env/bin/python",
    version="3.11.7",
    prefix="/env",
    is_virtual=True,
    base_python="/usr/bin/python3",
    site_folders=(),
    scripts_folder="/env/bin",
    script_files=(),
    distributions=(),
)


def read(folder: Path, text: str) -> RequirementFiles:
    (folder / "requirements.txt").write_text(text)
    return read_requirements(folder, "requirements.txt")


@pytest.mark.parametrize(
    ("include", "words"),
    [
        ("-r /dev/zero", "lie in the source folder"),
        ("-r /etc/passwd", "lie in the source folder"),
        ("-c file:///etc/passwd", "lie in the source folder"),
        ("--requirement=../outside.txt", "lie in the source folder"),
        ("-r sub/../../outside.txt", "lie in the source folder"),
        ("-r leading-out.txt", "a link that leads out"),
        ("-r device.txt", "a link that leads out"),
        ("-r pipe.txt", "found a named pipe"),
        ("-r folder", "found a folder"),
        ("-r giant.txt", f"longer than {MAX_FILE_BYTES} bytes"),
        ("-r round.txt", "includes itself, by way of requirements.txt and round.txt"),
        ("-r deep-0.txt", f"nested more than {MAX_DEPTH} deep"),
        ("\n".join(f"-r many-{number}.txt" for number in range(MAX_FILES)), f"more than {MAX_FILES} files"),
    ],
)
def test_files_that_are_not_the_jobs_own_are_refused_by_name(tmp_path: Path, include: str, words: str) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (tmp_path / "outside.txt").write_text("secret==1\n")
    (source / "folder").mkdir()
    (source / "leading-out.txt").symlink_to("../outside.txt")
    (source / "device.txt").symlink_to("/dev/zero")
    os.mkfifo(source / "pipe.txt")
    (source / "giant.txt").write_text("#" * (MAX_FILE_BYTES + 1))
    (source / "round.txt").write_text("-r requirements.txt\n")
    for number in range(MAX_DEPTH):
        (source / f"deep-{number}.txt").write_text(f"-r deep-{number + 1}.txt\n")
    for number in range(MAX_FILES):
        (source / f"many-{number}.txt").touch()
    with pytest.raises(AgentError, match=words) as info:
        read(source, include)
    assert info.value.fault is Fault.USER
    assert "secret" not in info.value.message


def test_includes_are_read_once_relative_to_the_including_file(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "one.txt").write_text("a\n-c common.txt\n")
    (tmp_path / "sub" / "common.txt").write_text("common\n")
    (tmp_path / "linked.txt").symlink_to("sub/common.txt")
    asked = read(
        tmp_path, "-r sub/one.txt\n-rsub/common.txt\n-r linked.txt\n-r /opt/ml/code/sub/one.txt\n-r absent.txt\n"
    )
    assert sorted(asked.files) == ["linked.txt", "requirements.txt", "sub/common.txt", "sub/one.txt"]
    assert asked.files["linked.txt"] == b"common\n"
    assert not asked.needs_source


@pytest.mark.parametrize(
    ("line", "is_plain", "has_options", "needs_source"),
    [
        ("numpy", True, False, False),
        (
            "Torch_Vision[all, extra] >=1.0, !=1.5.*,<2 ; python_version < '3.13' and sys_platform == \"linux\"",
            *[True, False, False],
        ),
        ("numpy==1.0 \\\n  --hash=sha256:00ff --hash=sha256:ee", True, False, False),
        ("numpy==1.0+local  # as it was", True, False, False),
        ("# nothing", False, False, False),
        ("--pre", False, True, False),
        ("--index-url https://far/simple", False, True, False),
        ("-fhttps://far/links", False, True, False),
        ("git+https://far/project@main", False, False, False),
        ("project[x] @ https://far/project-1.0.tar.gz", False, False, False),
        ("-e git+https://far/project#egg=project", False, False, False),
        ("-r https://far/more.txt", False, True, False),
        (".", False, False, True),
        ("./project", False, False, True),
        ("project/", False, False, True),
        ("project.whl", False, False, True),
        ("project-1.0.tar.gz", False, False, True),
        ("project @ file:///opt/ml/code/project", False, False, True),
        ("project @ ./project", False, False, True),
        ("-e .", False, False, True),
        ("--find-links .", False, True, True),
        ("--find-links /", False, True, True),
        ("--index-url file:///opt/ml/code/simple", False, True, True),
        ("--no-such-option x", False, True, True),
        ("${PLACE}", False, False, True),
        ("numpy@evil", False, False, True),
        ("numpy==1.0 ; ${PLACE}", False, False, True),
        ("git+file:///opt/ml/code/project", False, False, True),
    ],
)
def test_each_line_is_classified_by_the_inputs_of_its_installation(
    tmp_path: Path, line: str, is_plain: bool, has_options: bool, needs_source: bool
) -> None:
    asked = read(tmp_path, line)
    assert (bool(asked.plain), asked.has_options, asked.needs_source) == (is_plain, has_options, needs_source)


@pytest.mark.timeout(20)  # takes forever with a pattern that matches the same blanks in several ways
@pytest.mark.parametrize("line", ["a" + " " * 5000 + "!", "a [ b" + " \t" * 5000, "a >= 1 ," + " " * 5000 + "x y"])
def test_a_line_of_blanks_is_read_at_once(tmp_path: Path, line: str) -> None:
    assert read(tmp_path, line).needs_source


def test_blanks_within_a_line_change_nothing(tmp_path: Path) -> None:
    spaced = "numpy  [ a ,\tb ]   ( >= 1.0 ,  < 2 )   ;  python_version > '3'"
    assert read(tmp_path, spaced).plain == (spaced,)


def test_the_key_of_an_environment_covers_all_inputs_of_its_installation(tmp_path: Path) -> None:
    keys = set()
    for text in ("numpy\n", "numpy\n#\n"):
        asked = read(tmp_path, text)
        keys |= {installation_key(FACTS, asked), installation_key(FACTS, asked, "namespaces")}
    assert len(keys) == 4
    before = source_digest(tmp_path, check=lambda: None)
    assert before == source_digest(tmp_path, check=lambda: None)
    (tmp_path / "uv.toml").write_text("")
    assert before != source_digest(tmp_path, check=lambda: None)
    (tmp_path / "uv.toml").unlink()
    (tmp_path / "link").symlink_to("/dev/zero")
    linked = source_digest(tmp_path, check=lambda: None)
    (tmp_path / "link").unlink()
    (tmp_path / "link").symlink_to("/dev/null")
    assert len({before, linked, source_digest(tmp_path, check=lambda: None)}) == 3
