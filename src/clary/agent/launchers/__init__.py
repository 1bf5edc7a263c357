"""Launchers: the processes that a host starts for a job, as plain data.

Where: the supervisor creates a `LaunchContext` when code and environment are ready, `select` returns the launcher, its
`build` returns the processes, and `agent.host` starts them. Launchers do not start processes themselves.

context      inputs of launchers, and settings that their processes share
selection    choice of a job's launcher
command, toolkit, built_in, plain, torch_distributed, smddp, mpi, parameter_server, multi_worker_mirrored
ranks        processes with ranks, for the launchers that start ranks themselves
host_list    the variable that lists the job's hosts, for launchers inside the program
jax_world    variables for jax: a coordinator, the number of processes, each process's index
open_mpi     a real mpirun, if the environment or the machine has one
shims/       files that run inside the program's environment; they import nothing of clary (`shim_files`: their paths)
"""

from clary.agent.launchers.context import LaunchContext, make_context
from clary.agent.launchers.selection import Launcher, select
from clary.agent.launchers.shim_files import SHIMS_BIN_FOLDER, SHIMS_FOLDER, shims_path

__all__ = ["SHIMS_BIN_FOLDER", "SHIMS_FOLDER", "LaunchContext", "Launcher", "make_context", "select", "shims_path"]
