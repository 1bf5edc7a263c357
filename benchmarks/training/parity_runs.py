"""Which real training runs are compared, and the text that they train on; needs no torch.

Text comes from this Python's own standard library, from the docstrings of its modules: English sentences, the same
wherever the version of Python is the same. Words of a program are left out.
"""

from __future__ import annotations

import ast
import re
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

FEWEST_WORDS, MOST_WORDS = 6, 40  # of a sentence in a pair
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z])")
_LOOKS_LIKE_CODE = re.compile(r">>>|::|[{}<>=|\\]")


@dataclass(frozen=True)
class ParityRun:
    """One run of two ranks.

    Args:
        task: `gpt2`, a decoder that predicts the next byte, from drawn weights; `minilm`, a trained encoder of
            sentences that is to find the sentence that follows.
        way: `ddp`, torch's; `pipeline`, SMP with two partitions; `tensor`, SMP with tensor groups of two.
        num_layers: of the decoder; the encoder's are what they are.
        hidden: width of the decoder, 64 channels a head.
        batch_size: rows of the global batch, sequences or pairs; ddp's ranks have half each, SMP cuts it into two
            microbatches.
        length: of a sequence, in bytes or in words.
        num_batches: how many batches there are, over and over.
    """

    task: str
    way: str
    num_steps: int
    num_layers: int = 12
    hidden: int = 768
    batch_size: int = 8
    length: int = 64
    num_batches: int = 1_000_000
    learning_rate: float = 1e-4


def docstrings() -> Iterator[str]:
    """Yield the docstrings of the standard library's modules, "" for a missing one; packages are not searched."""
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        tree = ast.parse(path.read_bytes())
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                yield ast.get_docstring(node) or ""


def sentence_pairs() -> list[tuple[str, str]]:
    """Return pairs of sentences that follow each other in a docstring, no sentence twice."""
    seen: set[str] = set()
    pairs = []
    for text in docstrings():
        for paragraph in text.split("\n\n"):
            sentences = [" ".join(one.split()) for one in _SENTENCE_END.split(paragraph)]
            for first, second in zip(sentences[::2], sentences[1::2], strict=False):
                if _is_prose(first) and _is_prose(second) and not {first, second} & seen:
                    seen |= {first, second}
                    pairs.append((first, second))
    return pairs


def _is_prose(sentence: str) -> bool:
    is_long_enough = FEWEST_WORDS <= len(sentence.split()) <= MOST_WORDS
    return is_long_enough and not _LOOKS_LIKE_CODE.search(sentence)
