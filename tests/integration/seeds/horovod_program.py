"""Program that sums over all ranks by Horovod, and prints MPI's number of each rank."""

import json
import os

import horovod.torch as hvd
import torch

torch.set_num_threads(1)
hvd.init()
total = hvd.allreduce(torch.tensor([float(hvd.rank() + 1)]), op=hvd.Sum)
facts = {"rank": hvd.rank(), "size": hvd.size(), "of_mpi": int(os.environ["OMPI_COMM_WORLD_RANK"]), "sum": total.item()}
print("facts: " + json.dumps(facts), flush=True)
