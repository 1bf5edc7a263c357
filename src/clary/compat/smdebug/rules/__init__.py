"""Base of rules, and the function that invokes them."""

from clary.train.debugger.rule import RequiredTensors, Rule, invoke_rule

__all__ = ["RequiredTensors", "Rule", "invoke_rule"]
