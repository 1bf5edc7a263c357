"""Launchers: the processes that a host starts for a job, as plain data.

Where: the supervisor makes a `LaunchContext` when code and environment are ready, `select` names the launcher, its
`build` returns the processes, and `agent.host` starts them. Launchers start no process themselves.

context      inputs of launchers, and settings that their processes share
selection    which launcher a job gets
command, toolkit, plain, torch_distributed, smddp, mpi, parameter_server, multi_worker_mirrored
ranks        processes with ranks, for the launchers that start ranks themselves
jax_world    what jax asks for: a coordinator, the number of processes, each process's number
open_mpi     a real mpirun, where the environment or the machine has one
shims/       files that run inside the program's environment; they import nothing of clary
"""

from clary.agent.launchers.context import LaunchContext, make_context
from clary.agent.launchers.selection import Launcher, select
from clary.agent.launchers.shim_files import SHIMS_BIN_FOLDER, SHIMS_FOLDER

__all__ = ["SHIMS_BIN_FOLDER", "SHIMS_FOLDER", "LaunchContext", "Launcher", "make_context", "select"]
