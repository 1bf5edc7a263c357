"""Try the wheel in dist/ as a user would: in new environments of Python 3.11 to 3.13, with a service and a job each.

    make test-wheel
    .venv/bin/python tools/test_wheel.py [--train-python .venvs/train/bin/python] [3.12 ...]

An interpreter that is not on this machine is fetched by uv where that is allowed to; one that cannot be had fails.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VERSIONS = ("3.11", "3.12", "3.13")
STEP_TIMEOUT_S = 600
# Runs in the environment of the wheel, which has botocore.
JOB = """
import os, sys, time
from botocore.session import Session
sagemaker = Session().create_client("sagemaker")
image, name = "registry/pytorch-training:2.8", "wheel"
sagemaker.create_training_job(
    TrainingJobName=name, RoleArn="arn:aws:iam::000000000000:role/ClaryExecutionRole",
    AlgorithmSpecification={"TrainingImage": image, "TrainingInputMode": "File",
                            "ContainerEntrypoint": ["python", "-c", "import torch; print(torch.ones(2).sum())"]},
    OutputDataConfig={"S3OutputPath": "s3://clary/wheel"}, StoppingCondition={"MaxRuntimeInSeconds": 120},
    ResourceConfig={"InstanceType": "ml.m5.large", "InstanceCount": 1, "VolumeSizeInGB": 1})
deadline = time.monotonic() + 150
while time.monotonic() < deadline:
    told = sagemaker.describe_training_job(TrainingJobName=name)
    if told["TrainingJobStatus"] not in ("InProgress", "Stopping"):
        break
    time.sleep(0.5)
print(told["TrainingJobStatus"], told.get("FailureReason", ""))
sys.exit(told["TrainingJobStatus"] != "Completed")
"""


def main() -> int:
    """Try each version; 0 if a job was completed under all of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("versions", nargs="*", default=VERSIONS)
    parser.add_argument("--train-python", type=Path, default=ROOT / ".venvs/train/bin/python", help="one with torch")
    arguments = parser.parse_args()
    wheels = sorted((ROOT / "dist").glob("*.whl"), key=lambda path: path.stat().st_mtime)
    if not wheels:
        sys.exit("dist/ holds no wheel: run `make wheel` first")
    for version in arguments.versions:
        began_s = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="clary-wheel-") as folder:
            try_version(version, wheels[-1], Path(folder), arguments.train_python)
        print(f"Python {version}: {wheels[-1].name} installed, a job Completed, in {time.monotonic() - began_s:.0f} s")
    return 0


def try_version(version: str, wheel: Path, folder: Path, train_python: Path) -> None:
    """Install the wheel, start a service of it, run a job and end the service."""
    uv, bin_folder = [sys.executable, "-m", "uv"], folder / "environment/bin"
    run([*uv, "venv", "--quiet", "--python", find_python(version), str(bin_folder.parent)])
    run([*uv, "pip", "install", "--quiet", "--python", str(bin_folder / "python"), f"{wheel}[server]"])
    named = {"CLARY_HOME": str(folder / "home"), "CLARY_PORT": "0", "CLARY_TLS_PORT": "0"}
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "CLARY_"))}
    environment = {**kept, **named, "CLARY_DEFAULT_PYTHON": str(train_python), "PATH": f"{bin_folder}:{kept['PATH']}"}
    run([str(bin_folder / "clary"), "up"], environment)
    try:
        run(["sh", "-c", 'eval "$(clary env)" && exec python -c "$0"', JOB], environment)
    finally:
        run([str(bin_folder / "clary"), "down"], environment)


def find_python(version: str) -> str:
    """Return an interpreter of this machine, or the version, which uv then looks for itself."""
    kept = sorted((Path.home() / ".pyenv/versions").glob(f"{version}.*/bin/python{version}"))
    for candidate in [*map(str, kept), shutil.which(f"python{version}")]:
        if candidate is None:
            continue
        asked = [candidate, "-I", "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
        if subprocess.run(asked, capture_output=True, text=True, timeout=60, check=False).stdout.strip() == version:
            return candidate
    return version


def run(command: list[str], environment: dict[str, str] | None = None) -> None:
    """Run a command to its end; if it fails, end this program with its output."""
    done = subprocess.run(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=STEP_TIMEOUT_S,
        check=False,
        cwd="/",
    )
    if done.returncode:
        sys.exit(f"{' '.join(command[:5])[:300]} ended with {done.returncode}:\n{done.stdout[-4000:]}")


if __name__ == "__main__":
    sys.exit(main())
