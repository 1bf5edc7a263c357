"""Environments below /tmp: a host has its own /tmp, into which they are bound."""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from boto3_clients import Clients, job_request, log_of, unique, wait
from running_service import SETTINGS, start_service

pytestmark = [pytest.mark.clients, pytest.mark.timeout(300), pytest.mark.xdist_group("environments-below-tmp")]

PROGRAM = 'echo left > /tmp/left; python -c "import sys, ours; print(sys.prefix, ours.word)"; ls /tmp'


@pytest.fixture
def environment():
    """An environment below /tmp, with its own module."""
    folder = Path(tempfile.mkdtemp(prefix="environment-", dir="/tmp"))
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=60)
    (site_packages,) = folder.glob("lib/python*/site-packages")
    (site_packages / "ours.py").write_text("word = 'found'\n")
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.parametrize("isolation", ["namespaces", "processes"])
@pytest.mark.long
def test_a_job_runs_in_an_environment_below_tmp(environment, isolation, tmp_path):
    images = SETTINGS.replace("[images]\n", '[images]\n"team/below-tmp:*" = "below-tmp"\n').replace(
        "[environments]\n", f'[environments]\nbelow-tmp = "{environment}/bin/python"\n'
    )
    service = start_service(tmp_path / "state", f'isolation = "{isolation}"\n{images}')
    try:
        aws, name = Clients(service), unique("below-tmp")
        request = job_request(name, PROGRAM)
        request["AlgorithmSpecification"]["TrainingImage"] = "registry.example/team/below-tmp:1"
        aws.sagemaker.create_training_job(**request)
        facts = wait(aws, name)
        log = "\n".join(log_of(aws, name))
        assert facts["TrainingJobStatus"] == "Completed", log
        assert f"{environment} found" in log
        if isolation == "namespaces":
            assert "left" in log.split(), "the rest of /tmp is the host's own"
            assert not Path("/tmp/left").exists()
    finally:
        service.clary("down", timeout=180)
        Path("/tmp/left").unlink(missing_ok=True)
