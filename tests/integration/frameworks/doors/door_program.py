"""Program of one rank: reduces, with Horovod also re-forms its group repeatedly, while strangers attack its ports.

    door_program.py WAY

Each rank counts as its own host, so that ranks communicate over TCP. Rank 1 joins once the file `come` is in
PROGRAM_FOLDER, by the port PORT_OF_RANK_1 if it is set; all ranks shut down in order once the file `end` exists. Each
rank prints a line after every `STEPS` steps, and at the end the number of steps.
"""

import os
import sys
import time

FOLDER = os.environ["PROGRAM_FOLDER"]
STEPS = 20  # number of steps between two lines


class Horovod:
    """`horovod.torch`."""

    forms_anew = True

    def begin(self):
        """Form the group."""
        import horovod.torch as library
        import torch

        torch.set_num_threads(1)
        self._torch, self._library = torch, library
        library.init()

    def most(self, value):
        """Return the largest value of all ranks."""
        return self._library.allreduce(self._torch.tensor([value]), op=self._library.Max).item()

    def end(self):
        """Leave the group."""
        self._library.shutdown()


class Smddp:
    """`smdistributed.dataparallel.tensorflow`."""

    forms_anew = False

    def begin(self):
        """Form the group."""
        import smdistributed.dataparallel.tensorflow as library
        import tensorflow as tf

        self._tf, self._library = tf, library
        library.init()

    def most(self, value):
        """Return the largest value of all ranks."""
        reduced = self._library.allreduce(self._tf.constant([value]), 0, 1, op=self._library.ReduceOp.MAX)
        return float(reduced.numpy()[0])

    def end(self):
        """Leave the group."""
        self._library.shutdown()


class Smp:
    """`smdistributed.modelparallel.tensorflow`."""

    forms_anew = False

    def begin(self):
        """Form the group."""
        import smdistributed.modelparallel.tensorflow as library

        self._library = library
        library.init({"partitions": 2, "microbatches": 1})

    def most(self, value):
        """Return the largest value of all ranks."""
        return max(self._library.allgather(value))

    def end(self):
        """Leave the group."""
        self._library.shutdown()


def is_there(name):
    return os.path.exists(os.path.join(FOLDER, name))


def main():
    """Form groups until the end."""
    way = {"horovod": Horovod, "smddp": Smddp, "smp": Smp}[sys.argv[1]]()
    rank = int(os.environ["RANK"])
    os.environ["CLARY_COLLECTIVE_HOST"] = f"host-{rank}"
    if rank and "PORT_OF_RANK_1" in os.environ:
        os.environ["CLARY_HOROVOD_PORT"] = os.environ["CLARY_COLLECTIVE_PORT"] = os.environ["PORT_OF_RANK_1"]
    print("waits", flush=True)
    while rank and not is_there("come"):
        time.sleep(0.05)
    steps, is_over = 0, False
    way.begin()
    while not is_over:
        if steps and way.forms_anew:
            way.end()
            way.begin()
        for _ in range(STEPS):
            over = way.most(float(is_there("end")))
            steps += 1
        is_over = over > 0
        print("so far", steps, flush=True)
    way.end()
    print("steps", steps, flush=True)


main()
