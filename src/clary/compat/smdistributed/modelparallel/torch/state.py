"""`smp.state` under a module of its name; the attribute of the package stays the state itself."""

from .session import state

__all__ = ["state"]
