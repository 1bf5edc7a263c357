"""Script that fits a model with Lightning on the requested number of GPUs; it does not mention Clary."""

import argparse
import os

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)


class Line(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def training_step(self, batch, number):
        loss = (self.layer(batch[0]) - batch[1]).square().mean()
        self.log("train_loss", loss, sync_dist=True)
        return loss

    def validation_step(self, batch, number):
        self.log("val_loss", (self.layer(batch[0]) - batch[1]).square().mean(), sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.01)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--strategy", default="auto")
    parser.add_argument("--precision", default="32-true")
    options = parser.parse_args()
    lightning.seed_everything(3)
    inputs = torch.randn(16, 4)
    data = TensorDataset(inputs, inputs.sum(1, keepdim=True))
    trainer = lightning.Trainer(
        accelerator="gpu",
        devices=options.devices,
        strategy=options.strategy,
        precision=options.precision,
        max_epochs=2,
        default_root_dir=os.environ["SM_MODEL_DIR"],
        enable_progress_bar=False,
        logger=False,
        log_every_n_steps=1,
        sync_batchnorm=options.devices > 1,
    )
    model = Line()
    before = model.layer.weight.detach().clone()
    trainer.fit(model, DataLoader(data, 4, shuffle=True, pin_memory=True), DataLoader(data, 4))
    after = trainer.strategy.broadcast(model.layer.weight.detach().cpu())
    assert not torch.equal(before, after)
    assert torch.equal(after, model.layer.weight.detach().cpu()), "the ranks differ"
    path = trainer.checkpoint_callback.best_model_path
    trainer.strategy.barrier()
    assert torch.equal(Line.load_from_checkpoint(path, map_location="cuda").layer.weight.detach().cpu(), after)
    print(f"rank {trainer.global_rank} of {trainer.world_size}: {trainer.global_step} steps")


if __name__ == "__main__":
    main()
