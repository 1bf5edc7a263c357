"""`clary.train.checkpoint` in jobs: stopped on two hosts and continued on one, with the same state bit by bit."""

import time

import pytest
from boto3_clients import log_of, unique, wait
from program_jobs import BUCKET, script_request, start

pytestmark = [pytest.mark.clients, pytest.mark.timeout(300), pytest.mark.xdist_group("checkpoint-training-jobs")]

# The program of docs/training-checkpoints.md, with a model, and with lines on the saved and restored steps.
TRAIN = """
import hashlib, os, signal, time
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from clary.train import checkpoint

torch.set_num_threads(1)
signal.signal(signal.SIGTERM, lambda *_: None)
dist.init_process_group("smddp")
model = torch.nn.Sequential(torch.nn.Linear(37, 19), torch.nn.Tanh(), torch.nn.Linear(19, 3))
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters())
loader = {"epoch": 0}
state = {"model": model, "optimizer": optimizer, "loader": loader}
last_step = int(os.environ["SM_HP_LAST_STEP"])

def say(word, step):
    values = [one.full_tensor() for one in model.parameters()]
    values += [optimizer.state[one]["exp_avg_sq"].full_tensor() for one in model.parameters()]
    digest = hashlib.sha256(b"".join(one.detach().numpy().tobytes() for one in values)).hexdigest()
    if dist.get_rank() == 0:
        print(word, step, loader["epoch"], dist.get_world_size(), digest, flush=True)

keeper = checkpoint.Keeper("/opt/ml/checkpoints", keep=2)
restored = keeper.restore(state)
if restored is not None:
    say("RESTORED", restored)
for step in range(0 if restored is None else restored + 1, last_step + 1):
    optimizer.zero_grad()
    model(torch.randn(4, 37)).square().mean().backward()
    optimizer.step()
    loader["epoch"] = step // 10
    is_last = keeper.should_stop() or step == last_step
    if is_last or step % 10 == 0:
        keeper.save(step, state)
        if is_last:
            say("SAVED", step)
            break
        if step == 20 and dist.get_rank() == 0:
            print("TRAINING", flush=True)
    time.sleep(0.01)
keeper.close()
dist.destroy_process_group()
"""


def request(aws, label, prefix, *, num_hosts, last_step):
    return script_request(
        aws,
        unique(label),
        {"train.py": TRAIN},
        hyperparameters={"sagemaker_distributed_dataparallel_enabled": "true", "last_step": str(last_step)},
        instance_count=num_hosts,
        ResourceConfig={"InstanceType": "ml.p4d.24xlarge", "VolumeSizeInGB": 10},
        CheckpointConfig={"S3Uri": prefix},
    )


def said(aws, name, word):
    """Return the text that the job's first rank printed after this word; None if it has not printed the word."""
    lines = [line.partition(f"{word} ")[2].split() for line in log_of(aws, name) if f"{word} " in f"{line} "]
    return lines[0] if lines else None


@pytest.mark.long
def test_a_stopped_job_continues_on_fewer_hosts(aws):
    prefix = f"s3://{BUCKET}/{unique('keeper')}"
    first = start(aws, request(aws, "keeper-1", prefix, num_hosts=2, last_step=100_000))
    deadline_s = time.monotonic() + 100
    while said(aws, first, "TRAINING") is None and time.monotonic() < deadline_s:
        time.sleep(0.2)
    aws.sagemaker.stop_training_job(TrainingJobName=first)
    facts = wait(aws, first, timeout_s=60)
    log = "\n".join(log_of(aws, first))
    assert facts["TrainingJobStatus"] == "Stopped", (facts.get("FailureReason"), log[-4000:])
    saved = said(aws, first, "SAVED")
    assert saved is not None, log[-4000:]
    second = start(aws, request(aws, "keeper-2", prefix, num_hosts=1, last_step=int(saved[0]) + 25))
    facts = wait(aws, second, timeout_s=100)
    log = "\n".join(log_of(aws, second))
    assert facts["TrainingJobStatus"] == "Completed", (facts.get("FailureReason"), log[-4000:])
    step, epoch, num_ranks, digest = saved
    restored = said(aws, second, "RESTORED")
    assert restored is not None, log[-4000:]
    assert (restored[0], restored[1], restored[3]) == (step, epoch, digest)
    assert int(num_ranks) == 2 * int(restored[2])
    assert int(said(aws, second, "SAVED")[0]) == int(step) + 25
