"""The `/opt/ml` tree of a host.

Where: agents build the tree, programs read and write it. With namespaces the program sees the tree at `/opt/ml`;
without namespaces, at the folder in which the agent built it. Each `MlTree` represents one of these views.
Source: SageMaker developer guide, "How Amazon SageMaker provides training information".
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

OPT_ML = Path("/opt/ml")


@dataclass(frozen=True)
class MlTree:
    """Paths below one `/opt/ml`."""

    root: Path

    @property
    def input(self) -> Path:
        """Folder of the program's inputs."""
        return self.root / "input"

    @property
    def config(self) -> Path:
        """Folder of hyperparameters.json, resourceconfig.json, inputdataconfig.json and others."""
        return self.input / "config"

    @property
    def data(self) -> Path:
        """Folder with one folder for each channel."""
        return self.input / "data"

    def channel(self, name: str) -> Path:
        """Folder of one channel."""
        return self.data / name

    @property
    def model(self) -> Path:
        """Folder that becomes model.tar.gz."""
        return self.root / "model"

    @property
    def output(self) -> Path:
        """Folder of data/, intermediate/ and the failure file."""
        return self.root / "output"

    @property
    def output_data(self) -> Path:
        """Folder that becomes output.tar.gz."""
        return self.output / "data"

    @property
    def intermediate(self) -> Path:
        """Folder that scripts expect to be synchronised while they run."""
        return self.output / "intermediate"

    @property
    def failure(self) -> Path:
        """File into which a program writes why it failed."""
        return self.output / "failure"

    @property
    def checkpoints(self) -> Path:
        """Default folder of checkpoints."""
        return self.root / "checkpoints"

    @property
    def code(self) -> Path:
        """Folder of the user's code; also the program's working folder."""
        return self.root / "code"
