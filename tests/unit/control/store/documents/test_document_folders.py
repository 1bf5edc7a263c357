"""Files of older releases are taken over into the database; a file that cannot be read now stays for the next start."""

import errno
from pathlib import Path

import pytest

from clary.control.store.documents.document_folders import take_over


class FakeDocuments:
    """Documents in memory."""

    def __init__(self):
        self.stored = {}

    async def numbers(self, job_name):
        return sorted(number for name, number in self.stored if name == job_name)

    async def put(self, job_name, number, found):
        self.stored[job_name, number] = found


@pytest.mark.parametrize("unreadable", ["record.json", "other.json"])
async def test_a_file_that_cannot_be_read_at_the_moment_is_taken_over_by_the_next_start(
    tmp_path, monkeypatch, unreadable
):
    folder = tmp_path / "dumps"
    for number in ("1", "2"):
        (folder / "job" / number).mkdir(parents=True)
        for name in ("record.json", "other.json"):
            (folder / "job" / number / name).write_text(number)
    real, documents = Path.read_text, FakeDocuments()

    def read_text(path, **options):
        if path.name == unreadable and path.parent.name == "2":
            raise OSError(errno.ENFILE, "Too many open files in system")
        return real(path, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_text", read_text)
        assert await take_over(folder, documents, first="record") == 1
    assert documents.stored == {("job", 1): {"record": 1, "other": 1}}
    assert await take_over(folder, documents, first="record") == 1
    assert documents.stored["job", 2] == {"record": 2, "other": 2}
    assert not folder.exists()
