"""Training script for SMP v1 that calls transformers' Trainer and uses no name of Clary; run by test_trainer_smp.

It trains a GPT-2, saves half-way, and evaluates; with `--resume yes` it resumes from that checkpoint. One process with
the `--batch` of all replicas together trains on the same batches, because each step uses all samples.
"""

import argparse
import json
import os
from pathlib import Path

import numpy as np
import torch
import transformers
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

NUM_SAMPLES, NUM_STEPS, SAVED_STEP = 16, 6, 3

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=16)  # samples per step of one replica
parser.add_argument("--resume", default="no")
parser.add_argument("--mp_parameters", default="")  # in the form in which jobs pass it
options = parser.parse_args()
folder = os.environ.get("RESULT_FOLDER") or os.environ["SM_MODEL_DIR"]
checkpoints = os.environ.get("CHECKPOINTS", "/opt/ml/checkpoints")
torch.set_num_threads(1)

tokens = torch.randint(0, 32, (NUM_SAMPLES, 8), generator=torch.Generator().manual_seed(1))
labels = tokens.clone()
labels[:, 0] = -100  # label that the loss ignores; versions 5 count such tokens in another way, and divide by the count
data = [{"input_ids": row, "labels": label} for row, label in zip(tokens, labels, strict=True)]


def make_trainer():
    set_seed(1)
    config = GPT2Config(
        vocab_size=32,
        n_embd=16,
        n_layer=2,
        n_head=2,
        n_positions=8,
        bos_token_id=0,
        eos_token_id=0,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        use_cache=False,
    )
    arguments = TrainingArguments(
        checkpoints,
        per_device_train_batch_size=options.batch,
        per_device_eval_batch_size=options.batch,
        max_steps=NUM_STEPS,
        learning_rate=5e-3,
        max_grad_norm=0.2,  # below the actual norms, so that each step clips by the norm of the whole model
        logging_steps=1,
        save_steps=SAVED_STEP,
        report_to=[],
        disable_tqdm=True,
        optim="adamw_torch",
        dataloader_pin_memory=False,
    )
    return Trainer(
        model=GPT2LMHeadModel(config),
        args=arguments,
        train_dataset=data,
        eval_dataset=data[:12],  # not a multiple of the batch size
        compute_metrics=lambda found: {
            "samples": len(found.label_ids),
            "labels": int(np.sum(found.label_ids[:, 1:])),
        },
    )


saved = Path(checkpoints) / f"checkpoint-{SAVED_STEP}"
trainer = make_trainer()
trainer.train(resume_from_checkpoint=str(saved) if options.resume == "yes" else None)
evaluation = trainer.evaluate()

rank = int(os.environ.get("RANK", "0"))
facts = {
    "version": transformers.__version__,
    "mode": str(trainer.args.parallel_mode).rpartition(".")[2],
    "replicas": trainer.args.world_size,
    "wrapper": type(trainer.model_wrapped).__name__,
    "optimizer": type(trainer.optimizer).__name__,
    "device": trainer.args.device.type,
    "epochs": trainer.state.epoch,
    "losses": [row["loss"] for row in trainer.state.log_history if "loss" in row],
    "evaluation": {name: evaluation[f"eval_{name}"] for name in ("loss", "samples", "labels")},
    "saved": sorted(path.name for path in saved.iterdir()),
}
with open(os.path.join(folder, f"rank-{rank}.json"), "w") as file:
    json.dump(facts, file)
