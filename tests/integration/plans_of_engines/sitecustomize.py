"""Makes plans state that the engine signals every process of a host, like plans for a cluster's scheduler.

The service under test has this folder on its PYTHONPATH, because plans of the local engine never state this.
"""

import functools

from clary.contract.launch_plan import LaunchPlan

_init = LaunchPlan.__init__


@functools.wraps(_init)
def _init_with_engine(self, **members):
    _init(self, **{**members, "notice_grace_s": 30.0, "engine_signals_all": True})


LaunchPlan.__init__ = _init_with_engine
