"""Commits that outlive their processes."""

from __future__ import annotations

import threading

from clary.train.horovod.commits import FILE_NAME, CommitWriter, commit_folder, read_commit


def test_the_newest_commit_is_read_back(tmp_path):
    assert read_commit(str(tmp_path)) is None
    writer = CommitWriter(str(tmp_path))
    for number in range(20):
        writer.write(lambda number=number: b"%d" % number)
    assert writer.close()
    assert read_commit(str(tmp_path)) == b"19"
    assert [path.name for path in tmp_path.iterdir()] == [FILE_NAME]


def test_commits_that_wait_give_way_to_the_newest(tmp_path):
    is_free, packed = threading.Event(), []

    def pack(content):
        is_free.wait(30)
        packed.append(content)
        return content

    writer = CommitWriter(str(tmp_path))
    writer.write(lambda: pack(b"first"))
    while not writer._thread or writer._next is not None:  # until the writer has taken the first
        threading.Event().wait(0.01)
    for content in (b"second", b"third"):
        writer.write(lambda content=content: pack(content))
    is_free.set()
    assert writer.close()
    assert packed == [b"first", b"third"]


def test_a_commit_that_fails_leaves_the_one_before_and_says_so(tmp_path, caplog):
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


def test_where_commits_are_written():
    assert commit_folder({}) is None
    assert commit_folder({"CLARY_HOROVOD_COMMITS": "/there"}) == "/there"
    assert commit_folder({"CLARY_HOROVOD_COMMITS": "", "SM_CURRENT_HOST": "algo-1"}) is None
