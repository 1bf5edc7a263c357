"""Invokes a rule step by step."""

from clary.train.debugger.rule import invoke_rule

__all__ = ["invoke_rule"]
