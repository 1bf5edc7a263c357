"""Which combinations of degrees and options run on 2, 4 and 8 ranks, and with which model; imports no torch.

The table has every product of degrees pp x tp x rdp that makes 2, 4 or 8, with every degree of shards that SMP allows
on it, and with optimizer state spread over replicas wherever a parameter has replicas. The other options rotate, so
that each value of each option meets each axis; `test_smp_eight` checks both properties.

Models
    shared      two layers of a perceptron share one weight
    winding     skip connections, a block that is called three times, a path that depends on the data
    gpt         a GPT-2 of torch's own layers; tensor groups cut its linear layers and embeddings
    lmhead      the GPT-2 of the same sizes as smp.nn.DistributedTransformerLMHead
    gpt-2M      2.2 million parameters: as gpt where the tensor degree is 1, else as lmhead
Extras
    one         one microbatch is active at a time
    same        all replicas process requests in one order (deterministic_server)
    untraced    the partition is made without a trace
    recomputed  a part of the model is checkpointed
    clipped     sharded gradients are clipped to a norm that they exceed
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property

TABLE = """
size pp tp sdp spread prescaled pipeline    optimize placement microbatches optimizer model  extra
2    2  1  1   no     no        interleaved memory   cluster   4            sgd       gpt    -
2    2  1  1   no     no        simple      speed    spread    2            adamw     winding one
2    2  1  1   no     no        interleaved speed    PDT       4            adamw     gpt-2M untraced
2    1  2  1   no     no        interleaved memory   TPD       2            adamw     gpt    -
2    1  2  1   yes    yes       interleaved speed    cluster   1            sgd       lmhead -
2    1  1  1   no     no        interleaved memory   DTP       2            sgd       winding recomputed
2    1  1  1   yes    no        simple      speed    PTD       1            adamw     gpt    -
2    1  1  2   no     no        interleaved memory   DPT       2            adamw     gpt    clipped
2    1  1  2   no     no        simple      speed    TPD       1            sgd       shared -

4    4  1  1   no     no        interleaved speed    TDP       4            adamw     gpt    -
4    4  1  1   no     no        simple      memory   PTD       4            sgd       winding -
4    1  4  1   no     no        interleaved speed    cluster   2            sgd       gpt    -
4    1  4  1   yes    yes       simple      memory   DTP       1            adamw     lmhead recomputed
4    1  1  1   no     no        interleaved memory   spread    2            adamw     winding -
4    1  1  1   yes    no        interleaved speed    PDT       2            sgd       gpt    -
4    2  2  1   no     no        interleaved memory   DTP       2            sgd       lmhead -
4    2  2  1   yes    yes       simple      speed    TPD       2            adamw     winding -
4    2  1  1   no     no        simple      memory   DTP       2            adamw     winding same
4    2  1  1   yes    no        interleaved speed    spread    4            sgd       gpt    recomputed
4    1  2  1   no     yes       interleaved speed    PTD       2            adamw     lmhead -
4    1  2  1   yes    no        interleaved memory   TDP       2            sgd       winding -
4    1  1  2   no     no        interleaved speed    TDP       1            sgd       gpt    -
4    1  1  4   no     no        interleaved memory   PTD       2            adamw     winding -
4    1  2  2   no     yes       interleaved memory   DPT       1            adamw     gpt    clipped

8    8  1  1   no     no        interleaved memory   DPT       4            sgd       gpt-2M -
8    8  1  1   no     no        simple      speed    TDP       8            adamw     gpt    one
8    1  8  1   no     yes       interleaved memory   spread    2            adamw     lmhead -
8    1  8  1   yes    no        interleaved speed    DPT       2            sgd       gpt    -
8    1  1  1   no     no        interleaved memory   cluster   2            adamw     gpt    -
8    1  1  1   yes    no        interleaved speed    TPD       1            sgd       winding recomputed
8    4  2  1   no     no        interleaved speed    PDT       4            adamw     lmhead -
8    4  2  1   yes    yes       simple      memory   TDP       2            sgd       winding same
8    2  4  1   no     yes       simple      speed    PTD       4            sgd       lmhead untraced
8    2  4  1   yes    no        interleaved memory   DTP       2            adamw     gpt    -
8    4  1  1   no     no        interleaved memory   PTD       4            adamw     winding -
8    4  1  1   yes    no        simple      speed    PDT       2            sgd       gpt    untraced
8    2  1  1   no     no        simple      memory   TDP       2            sgd       gpt    -
8    2  1  1   yes    no        interleaved speed    DPT       1            adamw     shared one
8    1  4  1   no     no        interleaved speed    TPD       2            adamw     gpt    recomputed
8    1  4  1   yes    yes       interleaved memory   PDT       1            sgd       lmhead -
8    1  2  1   no     yes       interleaved speed    DTP       2            sgd       winding -
8    1  2  1   yes    no        interleaved memory   cluster   1            adamw     gpt    -
8    2  2  1   no     yes       interleaved memory   cluster   2            adamw     gpt-2M -
8    2  2  1   no     no        simple      speed    spread    4            sgd       lmhead recomputed
8    2  2  1   yes    yes       simple      memory   PTD       4            sgd       gpt    same
8    2  2  1   yes    no        interleaved speed    TDP       2            adamw     winding -
8    2  2  1   no     yes       interleaved speed    PDT       2            sgd       shared -
8    2  2  1   yes    yes       simple      speed    DTP       2            adamw     lmhead untraced
8    1  1  2   no     no        interleaved memory   PDT       2            adamw     gpt-2M -
8    1  1  4   no     no        simple      speed    cluster   1            adamw     winding recomputed
8    1  1  8   no     no        interleaved memory   spread    2            sgd       gpt    clipped
8    1  2  2   no     yes       interleaved speed    TPD       2            sgd       winding -
8    1  2  4   no     yes       simple      memory   PTD       1            adamw     lmhead -
8    1  4  2   no     yes       interleaved memory   PDT       1            adamw     gpt-2M recomputed
"""


@dataclass(frozen=True)
class Combination:
    """One row of the table."""

    size: int
    pp: int
    tp: int
    sdp: int
    spread: bool
    prescaled: bool
    pipeline: str
    optimize: str
    placement: str
    microbatches: int
    optimizer: str
    model: str
    extra: str

    def __str__(self) -> str:
        return " ".join(f"{one.name}={getattr(self, one.name)}" for one in fields(self))

    @property
    def rdp(self) -> int:
        """The number of ranks that hold the same part of the model."""
        return self.size // (self.pp * self.tp)

    @property
    def degrees(self) -> tuple[int, int, int]:
        """The degrees of pipeline, tensor groups and replicas."""
        return self.pp, self.tp, self.rdp

    @cached_property
    def axes(self) -> frozenset[str]:
        """The axes of degree above 1; shards in place of replicas where there are any."""
        found = {"pp": self.pp, "tp": self.tp, "sdp" if self.sdp > 1 else "rdp": self.rdp}
        return frozenset(axis for axis, degree in found.items() if degree > 1)

    @property
    def num_shares(self) -> int:
        """The number of shares into which the global batch is cut over ranks."""
        return self.rdp if self.prescaled else self.rdp * self.tp

    @property
    def configuration(self) -> dict[str, object]:
        """The configuration to give to `smp.init`."""
        extras = {
            "one": {"active_microbatches": 1},
            "same": {"deterministic_server": True},
            "untraced": {"skip_tracing": True},
        }
        shards = {
            "sharded_data_parallel_degree": self.sdp,
            "sdp_param_persistence_threshold": 20,
            "sdp_gradient_clipping": CLIPPED_NORM if self.extra == "clipped" else 1e9,
        }
        return {
            "ddp": True,
            "partitions": self.pp,
            "tensor_parallel_degree": self.tp,
            "shard_optimizer_state": self.spread,
            "prescaled_batch": self.prescaled,
            "pipeline": self.pipeline,
            "optimize": self.optimize,
            "placement_strategy": self.placement,
            "microbatches": self.microbatches,
            **(shards if self.sdp > 1 else {}),
            **extras.get(self.extra, {}),
        }


CLIPPED_NORM = 0.05


def _read(line: str) -> Combination:
    size, pp, tp, sdp, spread, prescaled, pipeline, optimize, placement, microbatches, *rest = line.split()
    degrees = (int(size), int(pp), int(tp), int(sdp))
    return Combination(
        *degrees, spread == "yes", prescaled == "yes", pipeline, optimize, placement, int(microbatches), *rest
    )


COMBINATIONS = tuple(_read(line) for line in TABLE.strip().splitlines()[1:] if line)


def combinations(size: int, *axes: str) -> list[Combination]:
    """Return the rows for a number of ranks in which exactly these axes have degrees above 1."""
    return [one for one in COMBINATIONS if one.size == size and one.axes == set(axes)]
