"""Records of rehearsals outlive their hosts, and links that a program put in their place are not followed."""

import os

from clary.control.engines.local import cleaning, rehearsal_records


def host_with(tmp_path, **files):
    host = tmp_path / "1" / "algo-1"
    folder = host / "ml" / ".clary" / "rehearsal"
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / f"{name}.jsonl").write_text(text)
    return host, folder


def test_records_are_kept_when_the_trees_of_a_host_are_removed(tmp_path):
    host, _ = host_with(tmp_path, a="one\n", b="two\n")
    rehearsal_records.keep(host)
    cleaning.remove_trees(host)
    assert not (host / "ml").exists()
    records = rehearsal_records.read(tmp_path / "1")
    assert [(item["host"], item["name"], item["text"]) for item in records] == [
        ("algo-1", "a.jsonl", "one\n"),
        ("algo-1", "b.jsonl", "two\n"),
    ]


def test_links_and_other_files_are_not_kept_as_records(tmp_path):
    host, folder = host_with(tmp_path, a="one\n")
    secret = tmp_path / "secret"
    secret.write_text("secret")
    (folder / "link.jsonl").symlink_to(secret)
    (folder / "notes.txt").write_text("mine")
    os.mkfifo(folder / "pipe.jsonl")
    rehearsal_records.keep(host)
    assert [item["text"] for item in rehearsal_records.read(tmp_path / "1")] == ["one\n"]
    assert secret.read_text() == "secret"


def test_a_folder_that_is_a_link_is_not_entered(tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "a.jsonl").write_text("not yours")
    host = tmp_path / "1" / "algo-1"
    (host / "ml" / ".clary").mkdir(parents=True)
    (host / "ml" / ".clary" / "rehearsal").symlink_to(elsewhere)
    rehearsal_records.keep(host)
    assert (elsewhere / "a.jsonl").exists()
    assert rehearsal_records.read(tmp_path / "1") == []


def test_a_link_in_the_place_of_a_kept_record_is_not_read(tmp_path):
    host, _ = host_with(tmp_path)
    secret = tmp_path / "secret"
    secret.write_text("secret")
    (host / "rehearsal-x.jsonl").symlink_to(secret)
    assert rehearsal_records.read(tmp_path / "1") == []


def test_a_record_that_is_too_long_is_cut_with_a_mark(tmp_path, monkeypatch):
    host, _ = host_with(tmp_path, a="x" * 100)
    monkeypatch.setattr(rehearsal_records, "MAX_FILE_BYTES", 10)
    rehearsal_records.keep(host)
    (record,) = rehearsal_records.read(tmp_path / "1")
    assert record["text"] == "x" * 10 + '\n{"e": "full"}\n'


def test_hosts_without_records_are_no_error(tmp_path):
    rehearsal_records.keep(tmp_path / "none")
    assert rehearsal_records.read(tmp_path / "none") == []
