"""An interpreter with the usual first imports of programs, which becomes the ranks of programs by forking.

Where: `clary.agent.host.standby` keeps it ready in a host; `interpreter_start` (pure) decides which programs it can
become. `clary_zygote` runs in the user's environment: Python 3.8 or later, the standard library only, and no other
module of clary. So this file has no imports.
"""
