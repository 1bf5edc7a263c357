"""Program that runs the printed train.py, which prints nothing, and prints facts about the trained model."""

import json
import runpy

import torch

torch.set_num_threads(1)
models = []
make_linear = torch.nn.Linear


class KeptLinear(make_linear):
    """The listing's layer class; every instance is recorded."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        models.append(self)


torch.nn.Linear = KeptLinear
runpy.run_path("listing.py", run_name="__main__")
from torchvision import datasets, transforms  # noqa: E402 - the listing's own import comes first

held_out = datasets.MNIST(".", train=False, transform=transforms.ToTensor(), download=True)
images = torch.stack([image for image, _ in held_out]).reshape(len(held_out), -1)
with torch.no_grad():
    found = models[-1](images).argmax(dim=1)
share = (found == torch.tensor([label for _, label in held_out])).float().mean().item()
weight = round(models[-1].weight.double().sum().item(), 9)
print("facts: " + json.dumps({"accuracy": share, "num_held_out": len(held_out), "weight": weight}), flush=True)
