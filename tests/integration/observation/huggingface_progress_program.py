"""A training with transformers' Trainer that does not mention Clary; Clary must still show its progress."""

import time

import torch
from transformers import Trainer, TrainerCallback, TrainingArguments


class Pairs(torch.utils.data.Dataset):
    def __len__(self):
        return 16

    def __getitem__(self, index):
        return {"x": torch.full((2,), float(index)), "labels": torch.tensor([float(index)])}


class Line(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.line = torch.nn.Linear(2, 1)

    def forward(self, x, labels):
        found = self.line(x)
        return {"loss": torch.nn.functional.mse_loss(found, labels), "logits": found}


class Slow(TrainerCallback):
    """Slows steps down, so that there is time for reports, which are sent every five seconds."""

    def on_step_begin(self, *_args, **_options):
        time.sleep(0.8)


arguments = TrainingArguments(
    output_dir="/opt/ml/checkpoints",
    num_train_epochs=2,
    per_device_train_batch_size=4,
    logging_steps=1,
    save_strategy="no",
    disable_tqdm=True,
    use_cpu=True,
    learning_rate=1e-4,
)
Trainer(model=Line(), args=arguments, train_dataset=Pairs(), callbacks=[Slow()]).train()
