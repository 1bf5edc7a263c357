"""Has plans say that the engine signals every process of a host, as those for a cluster's scheduler do.

A service gets this folder on its PYTHONPATH: the local engine signals nobody, so no plan of its own says so.
"""

import functools

from clary.contract.launch_plan import LaunchPlan

_init = LaunchPlan.__init__


@functools.wraps(_init)
def _init_with_engine(self, **members):
    _init(self, **{**members, "notice_grace_s": 30.0, "engine_signals_all": True})


LaunchPlan.__init__ = _init_with_engine
