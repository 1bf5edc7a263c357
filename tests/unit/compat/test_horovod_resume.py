"""Elastic programs of Horovod that find a commit when they start."""

import os
import subprocess
import sys

import pytest

from needs import ROOT

PROGRAM = """
import pickle, sys
from horovod.common.elastic import ObjectState

class OfOneModel(ObjectState):
    def packer(self):
        return lambda: pickle.dumps({"weights": [1.0], **self._saved_state})

    def unpack(self, content):
        kept = pickle.loads(content)
        kept.pop("weights" if sys.argv[1] == "same" else "matrices")
        self._saved_state.update(kept)

first = OfOneModel(bcast_object=lambda value: value, get_rank=lambda: 0, batch=3)
first.commit()
first._writer.close()
second = OfOneModel(bcast_object=lambda value: value, get_rank=lambda: 0, batch=0)
print(second.resume(), second.batch)
"""


def resumed(folder, which):
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, which],
        env={
            **os.environ,
            "PYTHONPATH": f"{ROOT / 'src/clary/compat'}{os.pathsep}{ROOT / 'src'}",
            "CLARY_HOROVOD_COMMITS": str(folder),
        },
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_program_resumes_from_a_commit_of_the_same_program(tmp_path):
    assert resumed(tmp_path, "same").stdout == "True 3\n"


def test_the_log_says_that_training_continues_and_how_to_begin_anew(tmp_path):
    told = resumed(tmp_path, "same").stderr
    assert f"training continues from the commit in {tmp_path}/horovod-elastic.commit" in told
    assert "remove the file to begin anew" in told


@pytest.mark.parametrize(
    "words", ["horovod-elastic.commit is a commit of another program: KeyError", "checkpoint_s3_uri"]
)
def test_a_commit_of_another_program_is_refused_with_a_message(tmp_path, words):
    done = resumed(tmp_path, "other")
    assert done.returncode
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("clary.train.horovod.errors.CommitError: ")
    assert words in last
