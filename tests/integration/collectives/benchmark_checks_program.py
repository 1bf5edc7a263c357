"""Program of one of two ranks that takes samples through a defective door and prints the findings of the checks.

Run: `python benchmark_checks_program.py FOLDER RANK`; the board lies in FOLDER. Needs numpy, both trees in its path.
"""

import json
import sys
from pathlib import Path

import numpy as np
from benchmarks.collectives.collective_board import Board
from benchmarks.collectives.collective_samples import Samples

NUM_RANKS, NUM_BYTES = 2, 4096
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter")


def nothing(output, rank):
    pass


def one_element_off(output, rank):
    output[0] += np.float32(1e-3)


def all_slightly_off(output, rank):
    output *= np.float32(1.00001)


def last_element_missing(output, rank):
    output[-1] = 0


def not_a_number(output, rank):
    output[0] = np.nan


def one_bit_on_one_rank(output, rank):
    if rank == 1:
        output.view(np.int32)[len(output) // 2] ^= 1


DEFECTS = (nothing, one_element_off, all_slightly_off, last_element_missing, not_a_number, one_bit_on_one_rank)


class FakeDoor:
    """Runs the collective over the board, then corrupts the result."""

    def __init__(self, board, rank, defect):
        self._board, self._rank, self._defect = board, rank, defect

    def call(self, collective, output, values):
        def run():
            inputs = [np.frombuffer(shown, dtype=np.float32) for shown in self._board.exchange(values.tobytes())]
            if collective == "all_gather":
                output[:] = np.concatenate(inputs)
            elif collective == "all_reduce":
                output[:] = sum(inputs)
            else:
                output[:] = sum(inputs)[self._rank * len(output) : (self._rank + 1) * len(output)]
            self._defect(output, self._rank)

        return run


def main():
    folder, rank = Path(sys.argv[1]), int(sys.argv[2])
    board = Board(folder / "board", rank, NUM_RANKS)
    for collective in COLLECTIVES:
        samples = Samples(board, rank, NUM_RANKS, collective=collective, num_bytes=NUM_BYTES)
        for defect in DEFECTS:
            taken = samples.take(FakeDoor(board, rank, defect), seed=1, first=0, num_samples=2, num_calls=2)
            said = {"collective": collective, "defect": defect.__name__, "problems": taken["problems"]}
            print(json.dumps(said | {"num_times": len(taken["times_s"])}))


main()
