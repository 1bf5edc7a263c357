"""Script that trains a small decoder to predict the next byte; it calls no compiler and no autocast."""

import argparse
import json
import os
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

BEGAN_AT_S = time.monotonic()
torch.set_num_threads(1)
WIDTH, HEADS, CONTEXT = 64, 4, 32


class Block(nn.Module):
    """Attention and an MLP, with dropout."""

    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH), nn.Dropout(0.1))

    def forward(self, x):
        batch, length, _ = x.shape
        q, k, v = (
            part.view(batch, length, HEADS, -1).transpose(1, 2) for part in self.qkv(self.norms[0](x)).chunk(3, -1)
        )
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.mlp(self.norms[1](x))


class BytesModel(nn.Module):
    """Decoder of bytes: embeddings, blocks and a head."""

    def __init__(self, num_layers=2):
        super().__init__()
        self.embed, self.places = nn.Embedding(256, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(num_layers))
        self.head = nn.Linear(WIDTH, 256)

    def forward(self, tokens):
        x = self.embed(tokens) + self.places.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def batch(data, step, size=8):
    """Return inputs and targets, both [size, CONTEXT], drawn with the step as seed."""
    generator = torch.Generator().manual_seed(step)
    starts = torch.randint(0, len(data) - CONTEXT - 1, (size,), generator=generator)
    rows = torch.stack([data[start : start + CONTEXT + 1] for start in starts.tolist()])
    return rows[:, :-1], rows[:, 1:]


def main():
    """Train, evaluate, save."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--amp", default="absent")
    parser.add_argument("--frozen", type=int, default=0)  # 1: the model is not trained, and therefore not compiled
    options, _ = parser.parse_known_args()
    data = torch.frombuffer(bytearray(Path(argparse.__file__).read_bytes()), dtype=torch.uint8).long()
    torch.manual_seed(0)
    model = BytesModel()
    model.train(not options.frozen)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses, first_step_s = [], 0.0
    for step in range(options.steps):
        tokens, targets = batch(data, step)
        logits = model(tokens)
        loss = functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        first_step_s = first_step_s or time.monotonic() - BEGAN_AT_S
    model.eval()
    with torch.no_grad():
        tokens, targets = batch(data, 10**6)
        evaluated = functional.cross_entropy(model(tokens).flatten(0, 1), targets.flatten()).item()
    folder = os.environ["SM_MODEL_DIR"]
    torch.save(model.state_dict(), os.path.join(folder, "weights.pt"))
    fresh = BytesModel()
    fresh.load_state_dict(torch.load(os.path.join(folder, "weights.pt")))
    facts = {
        "losses": losses,
        "evaluated": evaluated,
        "first_step_s": first_step_s,
        "names": list(model.state_dict()),
        "logits": str(logits.dtype),
        "amp": options.amp,
    }
    with open(os.path.join(folder, "facts.json"), "w") as file:
        json.dump(facts, file)


if __name__ == "__main__":
    main()
