"""Training script for mpirun: computes the sum of the ranks."""

import sys

from mpi4py import MPI

world = MPI.COMM_WORLD
total = world.allreduce(world.Get_rank() + 1)
print(f"rank {world.Get_rank()} of {world.Get_size()} sum: {total} arguments: {sys.argv[1:]}", flush=True)
