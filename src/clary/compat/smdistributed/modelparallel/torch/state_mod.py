"""`smp.state_mod`: the state, under the module name that scripts import."""

from .session import state

__all__ = ["state"]
