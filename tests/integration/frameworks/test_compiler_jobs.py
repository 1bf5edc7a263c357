"""Jobs with compiler_config: compiled, with the losses of eager execution, and from the cache in a second job."""

import json
import re
from pathlib import Path

import pytest
from boto3_clients import log_of, unique
from program_jobs import model_of, run, script_request, start
from running_service import CLIENTS, SDK2_PYTHON

pytestmark = [pytest.mark.clients, pytest.mark.timeout(1800), pytest.mark.xdist_group("compiler-jobs")]

PROGRAM = "bytes_model.py"
SOURCE = (CLIENTS / "source" / PROGRAM).read_text()
COMPILER = {"sagemaker_training_compiler_enabled": "true"}
TOLERANCE = 2e-4  # tolerance of losses after up to 30 steps, because Inductor adds in another order
COMPILED = re.compile(
    r"clary: compiled (\w+) by torch.compile \(inductor\), (\d+) graphs?, (\d+) breaks?, in ([\d.]+) s"
)
LIMIT_S = 500  # a cold compilation on a busy machine takes minutes
FROZEN = {"steps": "1", "frozen": "1"}  # the model is not trained, and therefore not compiled


def train(aws, label, hyperparameters=None, *, files=None, program=PROGRAM, **members):
    """Run the program in a job; return its facts and the job's log."""
    request = script_request(
        aws,
        unique(label),
        files or {PROGRAM: SOURCE},
        program=program,
        hyperparameters={"steps": "20", **(hyperparameters or {})},
        **members,
    )
    facts = run(aws, request, timeout_s=LIMIT_S)
    return json.loads(model_of(aws, facts)["facts.json"]), "\n".join(log_of(aws, request["TrainingJobName"]))


def same(losses, expected):
    return losses == pytest.approx(expected, rel=TOLERANCE, abs=TOLERANCE)


@pytest.fixture(scope="module")
def eager(aws):
    """The facts of the same training without a compiler."""
    facts, log = train(aws, "eager")
    assert "clary: compiled" not in log
    return facts


@pytest.mark.long(60)
def test_compiler_config_of_sdk_v2_compiles_the_model_with_the_same_losses(client_runs, aws, eager):
    client_runs.start(SDK2_PYTHON, "v2_compiler.py")
    output, facts = client_runs.result("v2_compiler.py")
    assert facts["hyperparameters"]["sagemaker_training_compiler_enabled"] == "true"
    log = "\n".join(log_of(aws, facts["name"]))
    found = COMPILED.search(log)
    assert found is not None, log[-4000:]
    assert found.groups()[:3] == ("BytesModel", "1", "0")
    assert same(facts["facts"]["losses"], eager["losses"]), (facts["facts"]["losses"], eager["losses"])
    assert same([facts["facts"]["evaluated"]], [eager["evaluated"]])
    assert facts["facts"]["names"] == eager["names"]
    assert "compiled by torch.compile" in log, "the note of the service is missing"
    told = {path.rpartition("/")[2]: text for path, text in facts["debug"].items()}
    assert "compiled BytesModel by torch.compile" in told["rank-0.txt"], output[-3000:]


@pytest.mark.long(60)
def test_the_second_job_of_the_same_program_starts_compiled_and_another_program_does_not(aws, eager):
    marked = {PROGRAM: SOURCE + f"\n# {unique('cold')}\n"}  # no earlier run of these tests has compiled it
    cold, cold_log = train(aws, "cold", COMPILER, files=marked)
    assert "none is kept of an earlier job" in cold_log
    warm, warm_log = train(aws, "warm", {**COMPILER, "steps": "10"}, files=marked)  # the same program
    kept = re.search(r"compiled code: (\d+) files, ([\d.]+) MiB from an earlier job", warm_log)
    assert kept is not None, warm_log[-3000:]
    assert same(warm["losses"], eager["losses"][:10])
    cold_s, warm_s = (float(COMPILED.search(log)[4]) for log in (cold_log, warm_log))
    first_s = [round(one["first_step_s"], 1) for one in (cold, warm)]
    print(f"first call: cold {cold_s} s, warm {warm_s} s; first step: {first_s}")
    assert warm_s < cold_s / 2
    others = {"another text": {**COMPILER, "corpus": '"other"'}, "other code": COMPILER}
    for why, hyperparameters in others.items():
        files = marked if why == "another text" else {PROGRAM: marked[PROGRAM] + "# changed\n"}
        _, log = train(aws, "other", {**hyperparameters, **FROZEN}, files=files)
        assert "none is kept of an earlier job" in log, why


def test_a_program_that_compiles_its_own_model_is_not_changed(aws):
    own = SOURCE.replace("model = BytesModel()\n", "model = BytesModel()\n    model.compile(backend='eager')\n", 1)
    assert own != SOURCE
    facts, log = train(aws, "own-compile", COMPILER, files={PROGRAM: own})
    assert "not compiled: BytesModel: the program has it compiled itself" in log
    assert len(facts["losses"]) == 20


def test_without_a_cpp_compiler_a_job_trains_eagerly_and_logs_it(aws, eager):
    facts, log = train(aws, "no-compiler", COMPILER, Environment={"CXX": "/nowhere/g++"})
    assert "not compiled: BytesModel: there is no C++ compiler (g++) on this host" in log
    assert facts["losses"] == eager["losses"]


FAILING = """
import torch._dynamo.backends.registry as registry
import torch._dynamo
real = torch._dynamo.lookup_backend
def broken(name):
    def compile(graph, inputs, **options): raise RuntimeError("Inductor knows no such operator")
    return compile if name == "inductor" else real(name)
torch._dynamo.lookup_backend = broken
"""


@pytest.mark.long(11)
def test_a_model_that_cannot_be_compiled_trains_eagerly_and_logs_the_reason(aws, eager):
    program = SOURCE.replace("torch.set_num_threads(1)\n", f"torch.set_num_threads(1)\n{FAILING}", 1)
    facts, log = train(aws, "failing-compiler", COMPILER, files={PROGRAM: program})
    assert "not compiled: BytesModel: Inductor knows no such operator" in log
    assert same(facts["losses"], eager["losses"])


def test_pytorchxla_is_accepted_if_disabled_and_refused_by_name_if_enabled(aws):
    off = {**COMPILER, "sagemaker_pytorch_xla_multi_worker_enabled": "false", **FROZEN}
    facts, _ = train(aws, "xla-off", off)
    assert len(facts["losses"]) == 1
    on = {**COMPILER, "sagemaker_pytorch_xla_multi_worker_enabled": "true"}
    request = script_request(aws, unique("xla-on"), {PROGRAM: SOURCE}, program=PROGRAM, hyperparameters=on)
    with pytest.raises(aws.sagemaker.exceptions.ClientError, match="'pytorchxla' is not supported"):
        start(aws, request)


@pytest.mark.long(60)
def test_a_model_inside_ddp_is_compiled_and_its_replicas_stay_equal(aws):
    program = Path(__file__).with_name("amp_digits.py").read_text()
    ranks = {}
    for label, more in (("ddp-eager", {}), ("ddp-compiled", COMPILER)):
        request = script_request(
            aws,
            unique(label),
            {"train.py": program},
            hyperparameters={"sagemaker_torch_distributed_enabled": "true", "way": "ddp", **more},
            ResourceConfig={"InstanceType": "ml.p4d.24xlarge", "VolumeSizeInGB": 10},  # two ranks
        )
        files = model_of(aws, run(aws, request, timeout_s=LIMIT_S))
        ranks[label] = [json.loads(files[f"rank-{rank}.json"])["losses"] for rank in range(2)]
        log = "\n".join(log_of(aws, request["TrainingJobName"]))
    assert [name for name, *_ in COMPILED.findall(log)] == ["Perceptron"], log[-3000:]  # logged once per host
    for compiled, eager in zip(ranks["ddp-compiled"], ranks["ddp-eager"], strict=True):
        assert same(compiled, eager)
