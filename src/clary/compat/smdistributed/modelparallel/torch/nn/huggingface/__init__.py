"""Translations of state names, one module for each model of transformers."""

from . import bert, gpt2, gptj, gptneo, gptneox, llama, roberta

__all__ = ["bert", "gpt2", "gptj", "gptneo", "gptneox", "llama", "roberta"]
