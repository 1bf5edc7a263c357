"""torchvision in the environment of the tests' programs, and the message of a job whose torchvision lacks operators."""

import json
import os
import subprocess

import pytest
from program_jobs import failure_of, run_script
from running_service import TRAIN_PYTHON
from seed_listings import HERE

pytestmark = [pytest.mark.needs("train"), pytest.mark.timeout(180), pytest.mark.xdist_group("seeds")]


@pytest.mark.long(11)
def test_torchvision_works_except_for_compiled_operators_which_raise(digits):
    done = subprocess.run(
        [str(TRAIN_PYTHON), str(HERE / "torchvision_program.py"), str(digits)],
        env={"PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    facts = json.loads(done.stdout)
    assert (facts["num"], facts["shape"], facts["found"]) == (1350, [1, 32, 32], [1, 10])
    assert "Couldn't load custom C++ ops" in facts["nms"]


@pytest.mark.clients
def test_the_reason_of_a_job_whose_torchvision_does_not_load_names_the_remedy(aws):
    # Without the entry points of torch.backends, the operators are not declared in the tests' environment.
    script = "import torchvision"
    facts = run_script(aws, "seed-vision", script, Environment={"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"})
    reason = failure_of(facts)
    assert "operator torchvision::nms does not exist" in reason
    assert "install both from one index" in reason
