"""Program of one rank of DeepSpeed training under ZeRO on the CPU; on request it saves or resumes.

With `--plain yes` one process trains with torch only, on the batches of all ranks.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import own_extensions  # noqa: F401 - before DeepSpeed
import torch
from torch import nn

NUM_STEPS, SAVED_STEP, WIDTH, BATCH = 8, 4, 32, 8

parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int, default=-1)  # passed by DeepSpeed's launcher
parser.add_argument("--plain", default="no")
parser.add_argument("--stage", type=int, default=1)
parser.add_argument("--backend", default="smddp")
parser.add_argument("--offload", default="none", choices=["none", "cpu", "nvme"])
parser.add_argument("--nvme_path", default="/tmp/nvme")
parser.add_argument("--nvme_buffer", type=int, default=300_000)  # of 4 bytes; six fit into 8 MiB of locked memory
parser.add_argument("--sub_group_size", type=int, default=10_000)
parser.add_argument("--hidden", type=int, default=64)
parser.add_argument("--checkpoint", default="none", choices=["none", "save", "resume", "universal", "weights"])
options = parser.parse_args()
folder = Path(os.environ.get("RESULT_FOLDER") or os.environ.get("SM_MODEL_DIR", "/opt/ml/model"))
checkpoints = Path(os.environ.get("CHECKPOINTS", "/opt/ml/checkpoints"))
torch.set_num_threads(1)


def make_model():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(WIDTH, options.hidden),
        nn.ReLU(),
        nn.Linear(options.hidden, options.hidden),
        nn.ReLU(),
        nn.Linear(options.hidden, 3),
    )


def make_optimizer(model):
    return torch.optim.Adam(model.parameters(), lr=0.64 / options.hidden, eps=1e-3)


def batch_of(step):
    generator = torch.Generator().manual_seed(step)
    return torch.randn(BATCH, WIDTH, generator=generator), torch.randn(BATCH, 3, generator=generator)


def train_plainly():
    model = make_model()
    optimizer = make_optimizer(model)
    losses = []
    for step in range(NUM_STEPS):
        features, wanted = batch_of(step)
        loss = nn.functional.mse_loss(model(features), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return {"losses": losses, "first_step": 0}


def config_of(size):
    zero = {"stage": options.stage}
    if options.offload != "none":
        place = {"device": options.offload, "nvme_path": options.nvme_path, "pin_memory": False}
        zero["offload_optimizer"] = place
        if options.stage == 3:
            zero["offload_param"] = {**place, "buffer_count": 2, "buffer_size": options.nvme_buffer}
            zero["sub_group_size"] = options.sub_group_size
    return {
        "train_micro_batch_size_per_gpu": BATCH // size,
        "zero_optimization": zero,
        "zero_force_ds_cpu_optimizer": False,
        # Each host has its own folder; the agents combine the folders in S3.
        "checkpoint": {"use_node_local_storage": True, "load_universal": options.checkpoint == "universal"},
        "gradient_clipping": 0.0,  # newer versions clip by default
        "steps_per_print": 1000,
    }


def convert_on_each_host(local_rank):
    """Convert the checkpoint that other ranks have saved to a universal one."""
    if local_rank == 0:
        tag = (checkpoints / "latest").read_text().strip()
        program = [sys.executable, "-m", "deepspeed.checkpoint.ds_to_universal", "--num_extract_workers", "1"]
        program += ["--num_merge_workers", "1", "--input_folder", checkpoints / tag]
        subprocess.run([*program, "--output_folder", checkpoints / f"{tag}_universal"], check=True)
        (checkpoints / "latest_universal").write_text(f"{tag}_universal")
    torch.distributed.barrier()


def train_with_deepspeed():
    import deepspeed

    deepspeed.init_distributed(dist_backend=options.backend)
    rank, size = torch.distributed.get_rank(), torch.distributed.get_world_size()
    local_rank = int(os.environ["LOCAL_RANK"])
    # DeepSpeed keeps parameters of a model that was built whole in bfloat16 on NVMe, but a CPU computes in float32.
    is_made_in_parts = options.offload == "nvme" and options.stage == 3
    with deepspeed.zero.Init(config_dict_or_path=config_of(size), enabled=is_made_in_parts):
        model = make_model()
    first_step = 0
    if options.checkpoint == "weights":
        from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint

        model.load_state_dict(get_fp32_state_dict_from_zero_checkpoint(str(checkpoints)))
        first_step = SAVED_STEP
    engine, *_ = deepspeed.initialize(model=model, optimizer=make_optimizer(model), config=config_of(size))
    if options.checkpoint == "universal":
        convert_on_each_host(local_rank)
    if options.checkpoint in ("resume", "universal"):
        _, told = engine.load_checkpoint(str(checkpoints))
        first_step = told["step"]
    losses = []
    for step in range(first_step, NUM_STEPS):
        features, wanted = (part.chunk(size)[rank] for part in batch_of(step))
        loss = nn.functional.mse_loss(engine(features), wanted)
        engine.backward(loss)
        engine.step()
        mean = loss.detach().clone()
        torch.distributed.all_reduce(mean)
        losses.append(mean.item() / size)
        if options.checkpoint == "save" and step + 1 == SAVED_STEP:
            engine.save_checkpoint(str(checkpoints), client_state={"step": step + 1, "universal_checkpoint_info": {}})
    parameters = list(engine.module.parameters())
    with deepspeed.zero.GatheredParameters(parameters, enabled=options.stage == 3):
        checksum = float(sum(parameter.detach().double().abs().sum() for parameter in parameters))
    return {
        "rank": rank,
        "size": size,
        "host": os.environ.get("CURRENT_HOST"),
        "backend": torch.distributed.get_backend(),
        "local_rank": options.local_rank,
        "stage": engine.zero_optimization_stage(),
        "optimizer": type(engine.optimizer).__name__,
        "first_step": first_step,
        "losses": losses,
        "checksum": checksum,
        "swapped": {path.name: path.stat().st_size for path in Path(options.nvme_path).rglob(f"rank{rank}/*.swp")},
    }


found = train_plainly() if options.plain == "yes" else train_with_deepspeed()
folder.mkdir(parents=True, exist_ok=True)
(folder / f"rank-{found.get('rank', 0)}.json").write_text(json.dumps(found))
