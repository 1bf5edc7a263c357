"""Base of rules, and what invokes them."""

from clary.train.debugger.rule import RequiredTensors, Rule, invoke_rule

__all__ = ["RequiredTensors", "Rule", "invoke_rule"]
