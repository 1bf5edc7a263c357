"""Commits that outlive their processes."""

from __future__ import annotations

import os
import pickle
import threading

import pytest

from clary.train.horovod.commits import FILE_NAME, CommitWriter, commit_folder, read_commit
from clary.train.horovod.errors import CommitError


def write_commit(folder, content):
    writer = CommitWriter(str(folder))
    writer.write(lambda: content)
    assert writer.close()
    return folder / FILE_NAME


def test_the_newest_commit_is_read_back(tmp_path):
    assert read_commit(str(tmp_path)) is None
    writer = CommitWriter(str(tmp_path))
    for number in range(20):
        writer.write(lambda number=number: b"%d" % number)
    assert writer.close()
    assert read_commit(str(tmp_path)) == b"19"
    assert [path.name for path in tmp_path.iterdir()] == [FILE_NAME]


def test_waiting_commits_are_replaced_by_the_newest(tmp_path):
    is_free, packed = threading.Event(), []

    def pack(content):
        is_free.wait(30)
        packed.append(content)
        return content

    writer = CommitWriter(str(tmp_path))
    writer.write(lambda: pack(b"first"))
    while not writer._thread or writer._next is not None:  # until the writer has picked up the first commit
        threading.Event().wait(0.01)
    for content in (b"second", b"third"):
        writer.write(lambda content=content: pack(content))
    is_free.set()
    assert writer.close()
    assert packed == [b"first", b"third"]


def test_a_failed_commit_leaves_the_earlier_one_and_is_logged(tmp_path, caplog):
    writer = CommitWriter(str(tmp_path))
    writer.write(lambda: b"good")
    writer.close()

    def fail():
        raise ValueError("no room")

    again = CommitWriter(str(tmp_path))
    again.write(fail)
    assert again.close()
    assert read_commit(str(tmp_path)) == b"good"
    assert "no room" in caplog.text


def test_the_folder_of_commits_depends_on_the_environment():
    assert commit_folder({}) is None
    assert commit_folder({"CLARY_HOROVOD_COMMITS": "/there"}) == "/there"
    assert commit_folder({"CLARY_HOROVOD_COMMITS": "", "CURRENT_HOST": "algo-1"}) is None


def test_jobs_that_share_the_machine_s_files_commit_into_separate_folders(tmp_path):
    job = {"CURRENT_HOST": "algo-1", "SAGEMAKER_BASE_DIR": str(tmp_path)}
    assert commit_folder(job) is None, "not /opt/ml/checkpoints of the machine, which all jobs would share"
    (tmp_path / "checkpoints").mkdir()
    assert commit_folder(job) == str(tmp_path / "checkpoints")


@pytest.mark.parametrize("kept", [0, 5, 48, 60, -1], ids=lambda kept: f"{kept} bytes")
def test_a_torn_commit_is_refused_by_name_and_not_read(tmp_path, kept):
    path = write_commit(tmp_path, b"x" * 100)
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(CommitError, match=r"horovod-elastic.commit is not a complete commit .*remove it to begin anew"):
        read_commit(str(tmp_path))


def test_a_changed_or_added_byte_is_detected(tmp_path):
    path = write_commit(tmp_path, b"x" * 100)
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + b"y")
    with pytest.raises(CommitError, match="does not match its checksum"):
        read_commit(str(tmp_path))
    path.write_bytes(whole + b"y")
    with pytest.raises(CommitError, match="holds 101 bytes, expected 100"):
        read_commit(str(tmp_path))


def test_a_pickle_in_place_of_a_commit_is_refused(tmp_path):
    (tmp_path / FILE_NAME).write_bytes(pickle.dumps({"step": 3, "more": "x" * 100}))
    with pytest.raises(CommitError, match="it begins with"):
        read_commit(str(tmp_path))


def test_a_false_length_allocates_no_memory(tmp_path):
    path = write_commit(tmp_path, b"x")
    whole = path.read_bytes()
    path.write_bytes(whole[:8] + (1 << 50).to_bytes(8, "little") + whole[16:])
    with pytest.raises(CommitError, match=f"holds 1 bytes, expected {1 << 50}"):
        read_commit(str(tmp_path))


def plant_link(path):
    path.symlink_to("/dev/zero")


def plant_link_to_file(path):
    secret = path.parent / "secret"
    secret.write_bytes(b"of somebody else")
    path.symlink_to(secret)


@pytest.mark.timeout(20)  # opening a pipe without a writer must not block
@pytest.mark.parametrize("plant", [plant_link, plant_link_to_file, os.mkfifo, os.mkdir])
def test_a_path_that_is_no_regular_file_is_no_commit(tmp_path, plant):
    plant(tmp_path / FILE_NAME)
    with pytest.raises(CommitError, match="is not a complete commit"):
        read_commit(str(tmp_path))


@pytest.mark.timeout(20)
@pytest.mark.parametrize("plant", [plant_link_to_file, os.mkfifo])
@pytest.mark.parametrize("name", [FILE_NAME, f"{FILE_NAME}.new"])
def test_links_and_pipes_in_place_of_a_commit_are_replaced_and_not_written_through(tmp_path, plant, name):
    plant(tmp_path / name)
    write_commit(tmp_path, b"good")
    assert read_commit(str(tmp_path)) == b"good"
    left = {path.name: path for path in tmp_path.iterdir()}
    assert not left[FILE_NAME].is_symlink()
    assert set(left) <= {FILE_NAME, "secret"}
    if "secret" in left:
        assert left["secret"].read_bytes() == b"of somebody else"
