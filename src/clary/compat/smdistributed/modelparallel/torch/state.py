"""`smp.state` in a module of the same name; the package's attribute `state` stays the state itself."""

from .session import state

__all__ = ["state"]
