"""Script that trains with transformers' Trainer, as on a machine with one GPU; it does not mention Clary."""

import os

import torch
import transformers
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

torch.set_num_threads(1)
assert torch.cuda.is_available(), "this script needs a GPU"
assert torch.version.cuda.split(".")[0].isdigit()


class Words(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, number):
        words = (torch.arange(8) + number) % 32
        return {"input_ids": words, "labels": words}


class Captured:
    """Holds a graph as transformers 5 does; its annotation is evaluated when the class is created."""

    graph: torch.cuda.CUDAGraph | None = None
    pools: dict[int, torch.cuda.MemPool] | None = None


folder = os.environ["SM_MODEL_DIR"]
torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=32,
    hidden_size=16,
    intermediate_size=32,
    num_hidden_layers=1,
    num_attention_heads=2,
    num_key_value_heads=2,
    max_position_embeddings=16,
    bos_token_id=1,
    eos_token_id=2,
)
model = LlamaForCausalLM(config)
before = model.lm_head.weight.detach().clone()
arguments = TrainingArguments(
    output_dir=folder,
    max_steps=2,
    per_device_train_batch_size=2,
    learning_rate=0.01,
    fp16=True,
    optim="adamw_torch_fused",
    gradient_checkpointing=True,
    logging_steps=1,
    save_steps=1,
    report_to=[],
    disable_tqdm=True,
    dataloader_pin_memory=True,
)
trainer = Trainer(model=model, args=arguments, train_dataset=Words())
trainer.train()
assert not torch.equal(before, model.lm_head.weight.detach())
trainer.save_model(folder)
trainer.accelerator.wait_for_everyone()
again = LlamaForCausalLM.from_pretrained(folder, device_map="cuda", dtype=torch.float32)
assert torch.equal(again.lm_head.weight, model.lm_head.weight)
written = again.generate(torch.ones(1, 2, dtype=torch.long, device="cuda"), max_new_tokens=2, do_sample=False)
resumed = Trainer(model=again, args=arguments, train_dataset=Words())
resumed.train(resume_from_checkpoint=f"{folder}/checkpoint-1")
losses = [line["loss"] for line in trainer.state.log_history if "loss" in line]
told = f"{written.shape[1]} words, step {resumed.state.global_step}"
print(f"transformers {transformers.__version__}: losses {losses}, {told}")
