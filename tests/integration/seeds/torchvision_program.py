"""Program that uses the parts of torchvision that scripts need, without compiled operators."""

import json
import sys

import torch
import torchvision
from torchvision import datasets, models, transforms

torch.set_num_threads(1)
steps = transforms.Compose([transforms.ToTensor(), transforms.Normalize((0.1307,), (0.3081,)), transforms.Resize(32)])
train = datasets.MNIST(sys.argv[1], train=True, transform=steps, download=True)
image, label = train[0]
found = models.resnet18(weights=None, num_classes=10).eval()(image.repeat(1, 3, 1, 1))
try:
    torchvision.ops.nms(torch.zeros(1, 4), torch.zeros(1), 0.5)
except RuntimeError as error:
    of_nms = str(error)
print(
    json.dumps(
        {"num": len(train), "shape": list(image.shape), "label": label, "found": list(found.shape), "nms": of_nms}
    )
)
