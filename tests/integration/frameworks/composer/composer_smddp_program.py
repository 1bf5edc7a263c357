"""Program of a rank of Composer's Trainer over smddp; with `--plain yes`, one process on the batches of all ranks.

With `--fsdp yes`, and FSDP_VERSION=2 in the environment, ranks share the model's parameters.
"""

import argparse
import json
import os
from pathlib import Path

import torch
from composer import Callback, ComposerModel, Trainer
from composer.devices import DeviceCPU
from composer.utils import dist
from torch import nn

NUM_SAMPLES, NUM_EPOCHS, WIDTH, NUM_CLASSES = 8, 6, 16, 3  # an epoch is one step on all samples

parser = argparse.ArgumentParser()
parser.add_argument("--plain", default="no")
parser.add_argument("--load", default="")  # name of a file in the checkpoint folder
parser.add_argument("--fsdp", default="no")
options = parser.parse_args()
folder = Path(os.environ.get("RESULT_FOLDER") or os.environ["SM_MODEL_DIR"])
checkpoints = Path(os.environ.get("CHECKPOINT_FOLDER", "/opt/ml/checkpoints"))
torch.set_num_threads(1)


class SmddpOnCpu(DeviceCPU):
    """A device whose attribute tells Composer the backend."""

    dist_backend = "smddp"


class Net(ComposerModel):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(WIDTH, 32), nn.Tanh(), nn.Linear(32, NUM_CLASSES))

    def forward(self, batch):
        return self.layers(batch[0])

    def loss(self, outputs, batch):
        return nn.functional.cross_entropy(outputs, batch[1])


class KeepLosses(Callback):
    def __init__(self):
        self.losses = []

    def after_loss(self, state, logger):
        loss = state.loss.detach().clone()
        dist.all_reduce(loss, "SUM")
        self.losses.append(loss.item() / dist.get_world_size())


device = DeviceCPU() if options.plain == "yes" else SmddpOnCpu()
dist.initialize_dist(device)
generator = torch.Generator().manual_seed(3)
samples = torch.utils.data.TensorDataset(
    torch.randn(NUM_SAMPLES, WIDTH, generator=generator),
    torch.randint(NUM_CLASSES, (NUM_SAMPLES,), generator=generator),
)
loader = torch.utils.data.DataLoader(
    samples, batch_size=NUM_SAMPLES // dist.get_world_size(), sampler=dist.get_sampler(samples)
)
net, kept = Net(), KeepLosses()
trainer = Trainer(
    model=net,
    train_dataloader=loader,
    optimizers=torch.optim.Adam(net.parameters(), lr=1e-2, eps=1e-3),
    max_duration=f"{NUM_EPOCHS}ep",
    device=device,
    parallelism_config={"fsdp": {}} if options.fsdp == "yes" else None,
    callbacks=[kept],
    progress_bar=False,
    save_folder=str(checkpoints),
    save_interval=f"{NUM_EPOCHS // 2}ep",
    save_overwrite=True,
    load_path=str(checkpoints / options.load) if options.load else None,
)
trainer.fit()
whole = [getattr(parameter, "full_tensor", lambda own=parameter: own)() for parameter in net.parameters()]
found = {
    "rank": dist.get_global_rank(),
    "node": dist.get_node_rank(),
    "size": dist.get_world_size(),
    "backend": torch.distributed.get_backend(),
    "model": type(trainer.state.model).__name__,
    "losses": kept.losses,
    "num_values": sum(getattr(parameter, "_local_tensor", parameter).numel() for parameter in net.parameters()),
    "checksum": float(sum(parameter.detach().double().abs().sum() for parameter in whole)),
}
(folder / f"rank-{found['rank']}.json").write_text(json.dumps(found))
trainer.close()
