"""Files that ranks of Horovod open by name, replaced by an attacker: commits and timelines."""

import os
import pickle
import time
from pathlib import Path

import pytest
from horovod_programs import Ranks

from clary.train.horovod.commits import FILE_NAME, CommitWriter

pytestmark = [pytest.mark.needs("train"), pytest.mark.timeout(200), pytest.mark.xdist_group("rank-doors")]

ELASTIC = Path(__file__).parents[1] / "horovod_elastic_program.py"
STEPS = Path(__file__).with_name("door_program.py")


class RunsCode:
    """A pickle that creates a folder when it is loaded."""

    def __init__(self, path):
        self._path = str(path)

    def __reduce__(self):
        return os.mkdir, (self._path,)


def torn(path, mark):
    CommitWriter(str(path.parent))._replace(pickle.dumps(RunsCode(mark)))
    path.write_bytes(path.read_bytes()[:-1])


def bare_pickle(path, mark):
    path.write_bytes(pickle.dumps(RunsCode(mark)))


def endless(path, mark):
    path.symlink_to("/dev/zero")


def pipe(path, mark):
    os.mkfifo(path)


@pytest.mark.parametrize("plant", [torn, bare_pickle, endless, pipe])
@pytest.mark.long(20)
def test_an_elastic_program_ends_at_a_forged_commit_and_runs_no_code_from_it(tmp_path, plant):
    commits, mark = tmp_path / "commits", tmp_path / "was-run"
    commits.mkdir()
    plant(commits / FILE_NAME, mark)
    begun = time.monotonic()
    (ended,) = Ranks(ELASTIC, 1, tmp_path, CLARY_HOROVOD_COMMITS=str(commits)).wait(100)
    assert ended.code == 1, ended.output[-3000:]
    assert f"CommitError: {commits / FILE_NAME} is not a complete commit of this job" in ended.output
    assert "remove it to begin anew" in ended.output
    assert not mark.exists()
    assert time.monotonic() - begun < 90


def pipe_timeline(path):
    os.mkfifo(path)


def link_timeline(path):
    (path.parent / "victim").write_text("of somebody else")
    path.symlink_to(path.parent / "victim")


@pytest.mark.parametrize("plant", [pipe_timeline, link_timeline])
@pytest.mark.long(10)
def test_a_timeline_path_that_is_a_pipe_or_link_is_logged_and_training_continues(tmp_path, plant):
    path = tmp_path / "timeline.json"
    plant(path)
    (tmp_path / "come").touch()
    (tmp_path / "end").touch()
    for ended in Ranks(STEPS, 2, tmp_path, "horovod", HOROVOD_TIMELINE=str(path)).wait(100):
        assert ended.code == 0, ended.output[-3000:]
        assert ended.output.splitlines()[-1] == "steps 20"
    assert f"no timeline is written to HOROVOD_TIMELINE={path}" in (tmp_path / "rank-0.log").read_text()
    if plant is link_timeline:
        assert (tmp_path / "victim").read_text() == "of somebody else"
