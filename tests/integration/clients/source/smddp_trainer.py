"""Training script of the SMDDP tests: transformers' Trainer on a tiny BERT, with `smddp` chosen by the script."""

import argparse
import json
import os

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

parser = argparse.ArgumentParser()
parser.add_argument("--init", choices=["script", "trainer"], default="script")
options = parser.parse_args()
torch.set_num_threads(1)
if options.init == "script":
    torch.distributed.init_process_group("smddp")

config = BertConfig(
    vocab_size=32, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, num_labels=2
)
generator = torch.Generator().manual_seed(1)
tokens = torch.randint(0, 32, (64, 8), generator=generator)
data = [{"input_ids": row, "labels": (row.sum() % 2)} for row in tokens]
arguments = TrainingArguments(
    "/tmp/trainer", per_device_train_batch_size=4, max_steps=6, save_strategy="no", report_to=[], use_cpu=True
)
model = BertForSequenceClassification(config)
trainer = Trainer(model=model, args=arguments, train_dataset=data, eval_dataset=data)
trained = trainer.train()
weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
largest, smallest = weights.clone(), weights.clone()
torch.distributed.all_reduce(largest, op=torch.distributed.ReduceOp.MAX)
torch.distributed.all_reduce(smallest, op=torch.distributed.ReduceOp.MIN)
facts = {
    "mode": str(arguments.parallel_mode),
    "backend": torch.distributed.get_backend(),
    "processes": arguments.world_size,
    "wrapper": type(trainer.model_wrapped).__name__,
    "loss": trained.training_loss,
    "evaluation": trainer.evaluate()["eval_loss"],
    "equal": torch.equal(largest, smallest),
}
with open(os.path.join(os.environ["SM_MODEL_DIR"], f"rank-{arguments.process_index}.json"), "w") as file:
    json.dump(facts, file)
