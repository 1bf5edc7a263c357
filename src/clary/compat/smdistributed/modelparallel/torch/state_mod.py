"""`smp.state_mod`: the state, under the module that scripts import it from."""

from .session import state

__all__ = ["state"]
