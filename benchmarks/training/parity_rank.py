"""One of two ranks of a real training run; writes the loss of every step over the global batch, as JSON.

Run: `python -m benchmarks.training.parity_rank FOLDER RUN MODEL`, RUN being JSON of `ParityRun` and MODEL the folder of
a trained encoder; `bench_parity` does, and has written the text. Rank and size are where launchers write them.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from benchmarks.training.parity_runs import ParityRun

NUM_PIECES = 2  # microbatches of SMP, ranks of ddp
SEED = 1
TEMPERATURE = 0.05  # of similarities
VOCABULARY = 256  # bytes

Batch = tuple[torch.Tensor, ...]
Step = Callable[[Batch], float]


class NextByte(nn.Module):
    """GPT-2 of transformers, without dropout, over bytes."""

    def __init__(self, run: ParityRun) -> None:
        super().__init__()
        from transformers import GPT2Config, GPT2LMHeadModel

        config = GPT2Config(
            vocab_size=VOCABULARY,
            n_positions=run.length,
            n_embd=run.hidden,
            n_layer=run.num_layers,
            n_head=run.hidden // 64,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            use_cache=False,
        )
        self.gpt2 = GPT2LMHeadModel(config)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the mean loss of sequences [N, S]."""
        logits = self.gpt2(input_ids=ids).logits
        return functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


class NextSentence(nn.Module):
    """A trained BERT of transformers, without dropout, that is to find the second sentence of each pair among all."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        from transformers import BertModel

        self.bert = BertModel.from_pretrained(
            folder, add_pooling_layer=False, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
        )

    def forward(
        self, first: torch.Tensor, first_mask: torch.Tensor, second: torch.Tensor, second_mask: torch.Tensor
    ) -> torch.Tensor:
        """Return the mean loss of pairs; ids and masks are [N, S]."""
        similarities = self._embed(first, first_mask) @ self._embed(second, second_mask).T
        return functional.cross_entropy(similarities / TEMPERATURE, torch.arange(len(first)))

    def _embed(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        words = self.bert(input_ids=ids, attention_mask=mask).last_hidden_state
        weights = mask.unsqueeze(-1).to(words.dtype)
        return functional.normalize((words * weights).sum(1) / weights.sum(1), dim=-1)


def make_batches(run: ParityRun, folder: Path, trained: str) -> Callable[[int], Batch]:
    """Return a function that gives the global batch of a step, the same on all ranks."""
    if run.task == "gpt2":
        text = torch.frombuffer(bytearray((folder / "text").read_bytes()), dtype=torch.uint8).long()

        def sequences(number: int) -> Batch:
            generator = torch.Generator().manual_seed(number % run.num_batches)
            begins = torch.randint(0, len(text) - run.length, (run.batch_size,), generator=generator)
            return (torch.stack([text[begin : begin + run.length] for begin in begins.tolist()]),)

        return sequences
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(trained)
    pairs = json.loads((folder / "pairs").read_text(encoding="utf-8"))
    order = torch.randperm(len(pairs), generator=torch.Generator().manual_seed(SEED)).tolist()

    def sentences(number: int) -> Batch:
        begin = number % run.num_batches * run.batch_size
        chosen = [pairs[order[place % len(order)]] for place in range(begin, begin + run.batch_size)]
        found: list[torch.Tensor] = []
        for side in (0, 1):
            words = [pair[side] for pair in chosen]
            encoded = tokenizer(
                words, padding="max_length", truncation=True, max_length=run.length, return_tensors="pt"
            )
            found += [encoded["input_ids"], encoded["attention_mask"]]
        return tuple(found)

    return sentences


def make_step(run: ParityRun, make_model: Callable[[], nn.Module]) -> Step:
    """Return a function that trains one step on a global batch and returns its loss."""
    return _ddp_step(run, make_model()) if run.way == "ddp" else _smp_step(run, make_model)


def _optimizer(run: ParityRun, model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=run.learning_rate)


def _ddp_step(run: ParityRun, plain: nn.Module) -> Step:
    dist.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(plain)
    optimizer = _optimizer(run, model)

    def step(batch: Batch) -> float:
        optimizer.zero_grad()
        loss = model(*(one.chunk(NUM_PIECES)[dist.get_rank()] for one in batch))
        loss.backward()
        optimizer.step()
        whole = loss.detach().clone()
        dist.all_reduce(whole)
        return float(whole / NUM_PIECES)

    return step


def _smp_step(run: ParityRun, make_model: Callable[[], nn.Module]) -> Step:
    import smdistributed.modelparallel.torch as smp
    from smdistributed.modelparallel.torch.nn.huggingface.bert import translate_hf_state_dict_to_smdistributed_bert

    degree = {"pipeline": "partitions", "tensor": "tensor_parallel_degree"}[run.way]
    smp.init({"ddp": True, "microbatches": NUM_PIECES, "prescaled_batch": True, degree: 2})
    module = make_model()
    weights = translate_hf_state_dict_to_smdistributed_bert(module.state_dict())
    if run.way == "tensor":
        smp.set_tensor_parallelism(module)
    model = smp.DistributedModel(module)
    if run.way == "tensor":
        model.load_state_dict(weights)  # modules that were replaced have drawn weights of their own
        assert list(model.distributed_modules()), "nothing is cut over the tensor group"
    optimizer = smp.DistributedOptimizer(_optimizer(run, model))

    @smp.step
    def train(model: Any, *batch: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = model(*batch)
        model.backward(loss)
        return loss

    def step(batch: Batch) -> float:
        optimizer.zero_grad()
        loss = train(model, *batch).reduce_mean()
        optimizer.step()
        return float(loss)

    return step


def main() -> None:
    """Train, and write losses, seconds and torch's version into a file."""
    folder, run, trained = Path(sys.argv[1]), ParityRun(**json.loads(sys.argv[2])), sys.argv[3]
    torch.set_num_threads(1)

    def make_model() -> nn.Module:
        torch.manual_seed(SEED)
        return NextByte(run) if run.task == "gpt2" else NextSentence(trained)

    batches, step = make_batches(run, folder, trained), make_step(run, make_model)
    losses, seconds = [], []
    for number in range(run.num_steps):
        began = time.monotonic()
        losses.append(step(batches(number)))
        seconds.append(time.monotonic() - began)
    facts = {"losses": losses, "seconds": seconds, "torch": torch.__version__}
    (folder / f"told-{os.environ['RANK']}").write_text(json.dumps(facts), encoding="utf-8")
    sys.stdout.flush()
    os._exit(0)  # torch's own threads may end a process that leaves otherwise with a signal


if __name__ == "__main__":
    main()
