"""Reasons why tests of the SDK do not pass here: one entry for each cause, matched by the test's name and message."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass

from tools.sdk_tests.running import Ended

SKIPPED_BY_THE_SDK = "the SDK's repository skips it"
NOT_OFFERED, NOT_BY_DEFAULT, NEEDS = "not offered", "not by default", "needs"


@dataclass(frozen=True, kw_only=True)
class Reason:
    """A cause for which tests do not pass.

    Attributes:
        tests: A pattern of their names, as of file names.
        words: What they say then, or a part of it.
        kind: Not offered by design, not by default, or something that this machine or AWS would have to bring.
        why: The cause in a sentence without its full stop.
    """

    tests: str
    words: str
    kind: str
    why: str


REASONS = (
    Reason(
        tests="*test_local_model_trainer.py::*",
        words="",
        kind=NEEDS,
        why="Docker: local mode starts containers on the client's machine and asks the service for data in S3 alone",
    ),
    Reason(
        tests="*test_model_trainer.py::test_source_dir_local_tar_file",
        words="Training Execution failed",
        kind=NEEDS,
        why="internet: `requirements.txt` of the archive wants `torch==2.0.1+cpu` from download.pytorch.org",
    ),
    Reason(
        tests="*test_sagemaker_dependency_injection.py::*",
        words="Default image is supported only for Python versions 3.8 and 3.10",
        kind=NEEDS,
        why="a client with Python 3.10: the SDK has no default image for 3.11 and asks the service for nothing",
    ),
    Reason(
        tests="*::test_decorator_auto_capture",
        words="DockerException",
        kind=NEEDS,
        why="Docker: the client itself is to run in a container that has conda",
    ),
    Reason(
        tests="*::test_decorator_with_spark_job",
        words="python -m build --wheel",
        kind=NOT_OFFERED,
        why="images with Spark; the test stops before, where it builds a wheel of the checkout for such an image",
    ),
    Reason(
        tests="*conda*",
        words="Neither conda nor mamba is installed on the image",
        kind=NOT_OFFERED,
        why="conda environments within an image: an environment of this machine stands for the image, and has no conda",
    ),
    Reason(
        tests="*experiments/test_run.py::test_run_from*",
        words="is not authorized to perform: sagemaker:CreateExperiment",
        kind=NOT_BY_DEFAULT,
        why=(
            "a second job goes on with a run that another job has made, which neither its key nor its "
            'ExperimentConfig opens; it passes with the setting `job_api_access = "full"`'
        ),
    ),
    Reason(
        tests="*",
        words="when calling the DescribeKey operation",
        kind=NOT_OFFERED,
        why="keys of KMS: nothing is encrypted here, and a request that asks for it is refused",
    ),
    Reason(
        tests="*",
        words="when calling the CreateProcessingJob operation",
        kind=NOT_OFFERED,
        why="processing jobs: Clary is the training service",
    ),
)


def reason_of(end: Ended, reasons: Sequence[Reason] = REASONS) -> Reason | None:
    """Return why a test did not pass, or None if nobody has looked at that yet."""
    for reason in reasons:
        if fnmatch.fnmatchcase(end.test, reason.tests) and reason.words in end.words:
            return reason
    return None
