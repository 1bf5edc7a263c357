"""Encodes sentences by MiniLM: `python minilm_features.py MODEL SENTENCES FEATURES`, paths of a folder, JSON and .npy.

Where: `real_data` runs it in the interpreter that has torch and transformers. It imports nothing of ours.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import torch
from transformers import AutoTokenizer, BertModel

MOST_TOKENS = 64
BATCH = 32


def main() -> None:
    """Write the mean of the last layer over the tokens of each sentence, of length 1; shape [sentences, channels]."""
    model_folder, sentences_path, features_path = sys.argv[1:4]
    torch.set_num_threads(1)
    sentences = json.loads(Path(sentences_path).read_text(encoding="utf-8"))
    tokenizer = AutoTokenizer.from_pretrained(model_folder)
    model = BertModel.from_pretrained(model_folder, add_pooling_layer=False).eval()
    found: dict[int, np.ndarray] = {}
    by_length = sorted(range(len(sentences)), key=lambda index: len(sentences[index]))  # little padding
    with torch.no_grad():
        for begin in range(0, len(by_length), BATCH):
            places = by_length[begin : begin + BATCH]
            texts = [sentences[place] for place in places]
            tokens = tokenizer(texts, padding=True, truncation=True, max_length=MOST_TOKENS, return_tensors="pt")
            mask = tokens["attention_mask"].unsqueeze(-1).float()
            sums = (model(**tokens).last_hidden_state * mask).sum(1) / mask.sum(1)
            rows = torch.nn.functional.normalize(sums, dim=-1).numpy()
            found.update(zip(places, rows, strict=True))
    np.save(features_path, np.stack([found[place] for place in range(len(sentences))]))


if __name__ == "__main__":
    main()
