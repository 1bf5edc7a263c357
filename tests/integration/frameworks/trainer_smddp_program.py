"""Training script for SMDDP that calls transformers' Trainer and uses no name of Clary.

Each rank writes its facts to RESULT_FOLDER of its environment, or to SM_MODEL_DIR of a job. One process with the
`--batch` of all ranks together trains on the same batches, because each step uses all samples.
"""

import argparse
import json
import os

import torch
import transformers
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

NUM_SAMPLES, NUM_STEPS = 16, 5

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=4)  # samples per step of one rank
parser.add_argument("--use_cpu", default="false")  # value of TrainingArguments.use_cpu
options = parser.parse_args()
folder = os.environ.get("RESULT_FOLDER") or os.environ["SM_MODEL_DIR"]
torch.set_num_threads(1)
set_seed(1)

tokens = torch.randint(0, 32, (NUM_SAMPLES, 8), generator=torch.Generator().manual_seed(1))
data = [{"input_ids": row, "labels": row} for row in tokens]
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
switch = "no_cuda" if transformers.__version__.startswith("4.28") else "use_cpu"
arguments = TrainingArguments(
    os.path.join(folder, "trainer"),
    per_device_train_batch_size=options.batch,
    per_device_eval_batch_size=options.batch,
    max_steps=NUM_STEPS,
    learning_rate=5e-3,
    logging_steps=1,
    save_steps=NUM_STEPS,
    report_to=[],
    disable_tqdm=True,
    optim="adamw_torch",
    dataloader_pin_memory=False,
    **({switch: True} if options.use_cpu == "true" else {}),
)
model = GPT2LMHeadModel(config)
trainer = Trainer(model=model, args=arguments, train_dataset=data, eval_dataset=data)
trainer.train()
evaluation = trainer.evaluate()

is_distributed = torch.distributed.is_initialized()
losses = torch.tensor([row["loss"] for row in trainer.state.log_history if "loss" in row])
checksum = torch.cat([parameter.detach().flatten() for parameter in model.parameters()]).double().abs().sum()
facts = {
    "version": transformers.__version__,
    "mode": str(arguments.parallel_mode).rpartition(".")[2],
    "backend": torch.distributed.get_backend() if is_distributed else None,
    "ranks": arguments.world_size,
    "device": arguments.device.type,
    "wrapper": type(trainer.model_wrapped).__name__,
    "losses": losses.tolist(),
    "evaluation": evaluation["eval_loss"],
    "checksum": float(checksum),
}
with open(os.path.join(folder, f"rank-{arguments.process_index}.json"), "w") as file:
    json.dump(facts, file)
