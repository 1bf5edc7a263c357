"""Program of a rank of Lightning's Trainer over smddp; with `--plain yes`, one process on the batches of all ranks."""

import argparse
import json
import os
from pathlib import Path

import lightning
import torch
from lightning.pytorch.strategies import DDPStrategy, FSDPStrategy
from torch import nn

NUM_STEPS, WIDTH, BATCH = 6, 16, 8

parser = argparse.ArgumentParser()
parser.add_argument("--plain", default="no")
parser.add_argument("--strategy", default="ddp", choices=["ddp", "fsdp"])
parser.add_argument("--ranks_of_host", type=int, default=1)
parser.add_argument("--hosts", type=int, default=1)
options = parser.parse_args()
folder = Path(os.environ.get("RESULT_FOLDER") or os.environ["SM_MODEL_DIR"])
size = 1 if options.plain == "yes" else options.hosts * options.ranks_of_host
torch.set_num_threads(1)


class Net(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(WIDTH, 32), nn.Tanh(), nn.Linear(32, 3))
        self.losses = []

    def training_step(self, batch, _):
        features, wanted = batch
        loss = nn.functional.mse_loss(self.layers(features), wanted)
        self.log("loss", loss, on_epoch=True, sync_dist=True)  # averages integers of all ranks too
        self.losses.append(self.all_gather(loss.detach()).mean().item())
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-2, eps=1e-3)


generator = torch.Generator().manual_seed(3)
features, wanted = torch.randn(BATCH, WIDTH, generator=generator), torch.randn(BATCH, 3, generator=generator)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(features, wanted), batch_size=BATCH // size)
strategy = {"ddp": DDPStrategy, "fsdp": FSDPStrategy}[options.strategy]
trainer = lightning.Trainer(
    accelerator="cpu",
    devices=1 if options.plain == "yes" else options.ranks_of_host,
    num_nodes=1 if options.plain == "yes" else options.hosts,
    strategy="auto" if options.plain == "yes" else strategy(process_group_backend="smddp"),
    max_epochs=NUM_STEPS,  # each epoch is one step on all samples
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    default_root_dir=folder,
)
net = Net()
trainer.fit(net, loader)
is_distributed = torch.distributed.is_initialized()
checksum = float(sum(parameter.detach().double().abs().sum() for parameter in net.parameters()))
found = {
    "rank": trainer.global_rank,
    "size": trainer.world_size,
    "backend": torch.distributed.get_backend() if is_distributed else None,
    "strategy": type(trainer.strategy).__name__,
    "losses": net.losses,
    "checksum": checksum,
}
(folder / f"rank-{trainer.global_rank}.json").write_text(json.dumps(found))
