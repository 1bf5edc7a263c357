"""Translations of states, by transformers' models."""

from . import bert, gpt2, gptj, gptneo, gptneox, llama, roberta

__all__ = ["bert", "gpt2", "gptj", "gptneo", "gptneox", "llama", "roberta"]
