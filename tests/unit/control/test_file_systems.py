"""Jobs can use the folders that the settings name as file systems, and no other folders."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from clary.base.errors import ContractError, WireError
from clary.contract.launch_plan import Channel
from clary.control.file_systems import check_entry, folder_below, located, require_folder

ID = "fs-0123456789abcdef0"
CHANNEL = Channel(name="train", s3_uri=None, file_system_id=ID, file_system_folder="sets/one")


def refusal(channel, entries, home="/nonexistent/home"):
    with pytest.raises(WireError) as error:
        require_folder(located(channel, entries), home=Path(home))
    assert error.value.code == "ValidationException"
    return error.value.message


@pytest.fixture
def shared(tmp_path):
    (tmp_path / "shared" / "sets" / "one").mkdir(parents=True)
    return tmp_path / "shared"


def test_the_folder_of_an_entry_is_accepted(shared):
    channel = located(CHANNEL, {ID: {"path": str(shared)}})
    assert (channel.file_system_path, channel.file_system_folder) == (str(shared), "sets/one")
    require_folder(channel, home=shared.parent / "home")
    require_folder(replace(channel, file_system_folder=""), home=shared.parent / "home")
    other = Channel(name="s3", s3_uri="s3://b/p")
    assert located(other, {}) is other


def test_an_unknown_file_system_is_refused_with_the_setting_that_would_add_it():
    message = refusal(CHANNEL, {})
    assert f'"{ID}" = {{ path = "/the/folder", access = "ro" }}' in message
    assert "[file_systems]" in message
    assert "settings.toml" in message


def test_a_read_only_file_system_is_refused_to_a_job_that_wants_to_write(shared):
    channel = replace(CHANNEL, file_system_access="rw")
    message = refusal(channel, {ID: {"path": str(shared)}})
    assert 'set access = "rw"' in message
    require_folder(located(channel, {ID: {"path": str(shared), "access": "rw"}}), home=shared.parent / "home")


@pytest.mark.parametrize("below", ["..", "sets/../../..", "gone", "out", "out/etc", "file", "inner", "a\0b"])
def test_a_path_that_leaves_the_entry_or_does_not_exist_is_refused(below, shared):
    (shared / "out").symlink_to("/")
    (shared / "inner").symlink_to("sets")
    (shared / "file").write_text("")
    message = refusal(replace(CHANNEL, file_system_folder=below), {ID: {"path": str(shared)}})
    assert str(shared) in message


@pytest.mark.parametrize("path", ["/", "home/..", "home", "home/secrets", "link", "/proc", "/sys/kernel", "/dev"])
def test_the_state_folder_and_its_parents_are_refused(path, tmp_path):
    home = tmp_path / "home"
    (home / "secrets").mkdir(parents=True)
    (tmp_path / "link").symlink_to(home)
    channel = replace(CHANNEL, file_system_folder="")
    refusal(channel, {ID: {"path": str(tmp_path / path)}}, home)


def test_an_entry_that_contains_the_state_folder_is_refused_for_every_directory(tmp_path):
    (tmp_path / "home").mkdir()
    (tmp_path / "data").mkdir()
    channel = replace(CHANNEL, file_system_folder="data")
    assert "state folder" in refusal(channel, {ID: {"path": str(tmp_path)}}, tmp_path / "home")


def test_the_state_folder_is_recognised_before_it_exists_and_behind_a_link(tmp_path):
    channel = replace(CHANNEL, file_system_folder="")
    refusal(channel, {ID: {"path": str(tmp_path)}}, tmp_path / "home" / "new")
    (tmp_path / "real").mkdir()
    os.symlink(tmp_path / "real", tmp_path / "home")
    refusal(channel, {ID: {"path": str(tmp_path / "real")}}, tmp_path / "home")


@pytest.mark.parametrize(
    ("path", "kind", "below"),
    [
        ("/", "EFS", ""),
        ("", "EFS", ""),
        ("/a//b/./c/", "EFS", "a/b/c"),
        ("/fsx", "FSxLustre", ""),
        ("/fsx/a/b", "FSxLustre", "a/b"),
        ("/../x", "EFS", "../x"),  # refused when it is opened
    ],
)
def test_a_directory_path_is_below_the_entry_and_for_lustre_behind_its_mount_name(path, kind, below):
    assert folder_below(path, kind) == below


@pytest.mark.parametrize(
    ("name", "entry", "named"),
    [
        ("data", {"path": "/x"}, "fs-0123456789abcdef0"),
        ("fs-00000000000", {}, "fs-00000000000.path"),
        ("fs-00000000000", {"path": "relative"}, "absolute"),
        ("fs-00000000000", {"path": 7}, "absolute"),
        ("fs-00000000000", {"path": "/x", "access": "all"}, "ro or rw"),
        ("fs-00000000000", {"path": "/x", "mode": "ro"}, "unknown key"),
    ],
)
def test_an_invalid_entry_prevents_the_start_of_the_service(name, entry, named):
    with pytest.raises(ContractError, match=named):
        check_entry(name, entry, source="settings.toml")
    check_entry("fs-00000000000", {"path": "/x", "access": "rw"}, source="settings.toml")


def test_hosts_on_other_machines_may_have_a_folder_that_the_service_lacks(shared):
    (shared / "link").symlink_to("sets")
    elsewhere = located(CHANNEL, {ID: {"path": "/mnt/of-the-nodes"}})
    require_folder(elsewhere, home=shared.parent / "home", is_here=False)
    with pytest.raises(WireError, match="cannot be opened: No such file"):
        require_folder(elsewhere, home=shared.parent / "home")
    entries = {ID: {"path": str(shared)}}
    require_folder(located(replace(CHANNEL, file_system_folder="gone"), entries), home=Path("/x"), is_here=False)
    for below, home in [("..", "/x"), ("link/one", "/x"), ("sets/one", str(shared / "home")), ("sets/one", "/")]:
        channel = located(replace(CHANNEL, file_system_folder=below), entries)
        (shared / "home").mkdir(exist_ok=True)
        with pytest.raises(WireError):
            require_folder(channel, home=Path(home), is_here=False)
