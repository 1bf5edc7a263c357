"""Script that fine-tunes MiniLM to find the next sentence, without any autocast of its own; prints its losses."""

import argparse
import json
import os
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional
from transformers import AutoTokenizer, BertModel

# A processor without bfloat16 instructions takes ten times as long in bfloat16.
PAIRS, STEPS = (16, 20) if torch.ops.mkldnn._is_mkldnn_bf16_supported() else (4, 6)
LENGTH = 32
torch.set_num_threads(1)
parser = argparse.ArgumentParser()
parser.add_argument("--model", required=True)
folder = parser.parse_known_args()[0].model


class NextSentence(nn.Module):
    """The encoder, with the loss of finding each second sentence among all second sentences."""

    def __init__(self):
        super().__init__()
        self.bert = BertModel.from_pretrained(
            folder, add_pooling_layer=False, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
        )

    def forward(self, first, second):
        one, other = (
            functional.normalize(self.bert(**ids).last_hidden_state.mean(1), dim=-1) for ids in (first, second)
        )
        return functional.cross_entropy(one @ other.T / 0.05, torch.arange(len(one)))


def main():
    """Train and print the losses."""
    lines = [line.strip() for line in Path(argparse.__file__).read_text().splitlines() if len(line.split()) > 6][
        : 4 * PAIRS
    ]
    tokenizer = AutoTokenizer.from_pretrained(folder)

    def encoded(texts):
        return dict(tokenizer(texts, padding="max_length", truncation=True, max_length=LENGTH, return_tensors="pt"))

    torch.manual_seed(0)
    model = NextSentence()
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5)
    losses = []
    for step in range(STEPS):
        begin = step % 2 * 2 * PAIRS
        rows = lines[begin : begin + 2 * PAIRS]
        loss = model(encoded(rows[::2]), encoded(rows[1::2]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    with open(os.path.join(os.environ["SM_MODEL_DIR"], "facts.json"), "w") as file:
        json.dump({"losses": losses, "dtype": str(loss.dtype)}, file)


main()
