"""The program's one hook."""

from clary.train.debugger.hook import del_hook, get_hook, set_hook

__all__ = ["del_hook", "get_hook", "set_hook"]
