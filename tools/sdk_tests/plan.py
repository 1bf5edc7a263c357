"""The tests to run of each SDK's repository, and the replacements for AWS's images and archives."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
REGISTRY = "000000000000.dkr.ecr.us-west-2.amazonaws.com"
DUMMY = f"{REGISTRY}/remote-function-dummy-container"
_IMAGES = {
    "remote-function-dummy-container:compatible": "sdk",
    "remote-function-dummy-container:conda": "sdk",
    "remote-function-dummy-container:other-python": "other",
    "sagemaker-base-python*:*": "sdk",
    "sagemaker-scikit-learn:*": "sdk",
    "mxnet-training:*": "mxnet",
}


@dataclass(frozen=True, kw_only=True)
class Suite:
    """Tests of one folder of the repository.

    Attributes:
        folder: Where pytest is started, below the checkout.
        paths: Files and folders of tests, below it.
    """

    folder: str
    paths: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The tests to run of one SDK, with the interpreter and packages for them.

    Attributes:
        sdk: Its major version.
        python: The interpreter that has it.
        package: The distribution whose version the page tells.
        remote: The distribution that images of remote functions carry.
        suites: Its tests.
    """

    sdk: int
    python: Path
    package: str
    remote: str
    suites: tuple[Suite, ...]

    def fixtures(self, archive: Path) -> dict[str, str]:
        """Return values for fixtures: names of images, which nobody builds or pushes, and an archive."""
        return {
            "dummy_container_without_error": f"{DUMMY}:compatible",
            "dummy_container_with_user_and_workdir": f"{DUMMY}:compatible",
            "dummy_container_incompatible_python_runtime": f"{DUMMY}:other-python",
            "dummy_container_with_conda": f"{DUMMY}:conda",
            "sagemaker_sdk_tar_path": str(archive),
            "dev_sdk_tar": str(archive),
        }


PLANS = {
    2: Plan(
        sdk=2,
        python=ROOT / ".venvs/sdk2/bin/python",
        package="sagemaker",
        remote="sagemaker",
        suites=(
            Suite(folder=".", paths=("tests/integ/test_profiler.py",)),
            Suite(folder=".", paths=("tests/integ/sagemaker/modules/train",)),
            Suite(folder=".", paths=("tests/integ/sagemaker/remote_function",)),
            Suite(folder=".", paths=("tests/integ/sagemaker/experiments",)),
        ),
    ),
    3: Plan(
        sdk=3,
        python=ROOT / ".venvs/sdk3/bin/python",
        package="sagemaker",
        remote="sagemaker-core",
        suites=(
            Suite(
                folder="sagemaker-train",
                paths=(
                    "tests/integ/train/test_model_trainer.py",
                    "tests/integ/train/test_local_model_trainer.py",
                ),
            ),
            Suite(folder="sagemaker-core", paths=("tests/integ/remote_function",)),
        ),
    ),
}


def settings(plan: Plan, environments: Path) -> str:
    """Return the settings of the service that the tests talk to; images without an environment here are left out."""
    pythons = {
        "sdk": plan.python,
        "other": environments / f"sdk{plan.sdk}-other/bin/python",
        "mxnet": environments / "mxnet/bin/python",
    }
    there = {name: python for name, python in pythons.items() if python.exists()}
    lines = [
        "max_hosts = 4",
        "memory_overcommit = 32.0",
        "stop_grace_s = 10.0",
        f'default_python = "{ROOT / ".venvs/train/bin/python"}"',
        f'visible_folders = "{ROOT / ".venvs"}:{environments}"',
        "[images]",
        *(f'"{image}" = "{name}"' for image, name in _IMAGES.items() if name in there),
        "[environments]",
        *(f'{name} = "{python}"' for name, python in there.items()),
    ]
    return "\n".join(lines) + "\n"
