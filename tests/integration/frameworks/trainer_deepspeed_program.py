"""Program of a rank of transformers' Trainer, with `TrainingArguments(deepspeed=...)` if a stage is given.

With `--plain yes` it is a single process of Trainer, which trains on the batches of all ranks.
"""

import argparse
import json
import os

import own_extensions  # noqa: F401 - before DeepSpeed
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

NUM_SAMPLES, NUM_STEPS = 16, 5

parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int, default=-1)  # passed by DeepSpeed's launcher
parser.add_argument("--plain", default="no")
parser.add_argument("--batch", type=int, default=4)  # samples per step of one rank
parser.add_argument("--stage", type=int, default=0)  # 0: without DeepSpeed in the arguments
options = parser.parse_args()
folder = os.environ.get("RESULT_FOLDER") or os.environ.get("SM_MODEL_DIR", "/opt/ml/model")
torch.set_num_threads(1)
set_seed(1)

tokens = torch.randint(0, 32, (NUM_SAMPLES, 8), generator=torch.Generator().manual_seed(1))
labels = tokens.clone()
labels[:, 0] = -100  # label that the loss ignores
data = [{"input_ids": row, "labels": label} for row, label in zip(tokens, labels, strict=True)]
config = GPT2Config(
    vocab_size=32,
    n_embd=16,
    n_layer=1,
    n_head=2,
    n_positions=8,
    bos_token_id=0,
    eos_token_id=0,
    resid_pdrop=0.0,
    embd_pdrop=0.0,
    attn_pdrop=0.0,
)
settings = {
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
    "zero_optimization": {"stage": options.stage},
    "zero_force_ds_cpu_optimizer": False,
}
with open("/tmp/ds.json", "w") as file:
    json.dump(settings, file)
arguments = TrainingArguments(
    os.path.join(folder, "trainer"),
    per_device_train_batch_size=options.batch,
    max_steps=NUM_STEPS,
    learning_rate=5e-3,
    adam_epsilon=1e-4,
    max_grad_norm=100.0,
    logging_steps=1,
    save_strategy="no",
    report_to=[],
    disable_tqdm=True,
    optim="adamw_torch",
    dataloader_pin_memory=False,
    deepspeed="/tmp/ds.json" if options.stage else None,
)
model = GPT2LMHeadModel(config)
trainer = Trainer(model=model, args=arguments, train_dataset=data)
trainer.train()
is_distributed = torch.distributed.is_initialized()
facts = {
    "rank": arguments.process_index,
    "ranks": arguments.world_size,
    "host": os.environ.get("CURRENT_HOST"),
    "backend": torch.distributed.get_backend() if is_distributed else None,
    "kind": str(trainer.accelerator.distributed_type).rpartition(".")[2],
    "wrapper": type(trainer.model_wrapped).__name__,
    "losses": [row["loss"] for row in trainer.state.log_history if "loss" in row],
}
os.makedirs(folder, exist_ok=True)
with open(os.path.join(folder, f"rank-{arguments.process_index}.json"), "w") as file:
    json.dump(facts, file)
