"""ResNet-50 in plain PyTorch, with random weights that are worth comparing.

What lives here: the network, and `build_model`, which gives the same weights for the same seed and
image size. What does not: the export (`examples.pytorch_resnet.make_bundle`).

Source: He et al. 2015, with the stride in the 3x3 convolution, as is usual since.
"""

from typing import Any

import torch
from torch import nn

__all__ = ["CLASSES", "ResNet", "build_model"]

CLASSES = 1000
_STAGES = ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2))
"""Width, blocks and stride of each stage of ResNet-50."""
_EXPANSION = 4

_CALIBRATION_BATCHES, _CALIBRATION_ROWS = 4, 8
_BRANCH_SCALE = 0.3
"""Of what a block adds. At 1, rounding grows from block to block as in no trained network."""


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions beside a shortcut."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        out = width * _EXPANSION
        self.conv1 = nn.Conv2d(channels, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, out, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(out)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = None
        if stride != 1 or channels != out:
            self.downsample = nn.Sequential(
                nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out)
            )

    def forward(self, x: Any) -> Any:
        """Shapes: x (n, c, h, w); result (n, 4 * width, h / stride, w / stride)."""
        shortcut = x if self.downsample is None else self.downsample(x)
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        return self.relu(self.bn3(self.conv3(y)) + shortcut)


class ResNet(nn.Module):
    """ResNet-50."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, padding=1)
        channels = 64
        for number, (width, blocks, stride) in enumerate(_STAGES, start=1):
            stage = []
            for index in range(blocks):
                stage.append(Bottleneck(channels, width, stride if index == 0 else 1))
                channels = width * _EXPANSION
            setattr(self, f"layer{number}", nn.Sequential(*stage))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(channels, CLASSES)

    def forward(self, image: Any) -> Any:
        """Shapes: image (n, 3, h, w); result, the logits, (n, 1000)."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(image))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(torch.flatten(self.avgpool(x), 1))


def build_model(image_size: int, seed: int = 0) -> ResNet:
    """A ResNet-50 in eval mode whose answers depend on its input.

    A freshly made network hardly looks at its input: running statistics of 0 and 1 fit none of its
    layers. Here they are those of random images, so that a wrong program gives a wrong answer.
    """
    before = torch.get_rng_state()
    torch.manual_seed(seed)
    model = ResNet()
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(module, nn.BatchNorm2d):
            module.momentum = None  # the mean over all batches, instead of the latest
            # ones and zeros would hide a weight in another's place
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, std=0.1)
    for module in model.modules():
        if isinstance(module, Bottleneck):
            module.bn3.weight.data.mul_(_BRANCH_SCALE)
    with torch.no_grad():
        for _ in range(_CALIBRATION_BATCHES):
            model(torch.randn(_CALIBRATION_ROWS, 3, image_size, image_size))
    torch.set_rng_state(before)
    model.eval()
    return model
