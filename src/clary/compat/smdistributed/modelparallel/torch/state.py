"""`smp.state` under a module of the same name; the attribute of the package stays the state itself."""

from .session import state

__all__ = ["state"]
