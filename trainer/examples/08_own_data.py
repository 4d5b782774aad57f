"""Reads what 08_own_data.rs has saved, in PyTorch: `python 08_own_data.py spirals.safetensors`."""

import sys

import torch
from safetensors.torch import load_file
from torch import nn


class Sine(nn.Module):
    def __init__(self):
        super().__init__()
        self.frequency = nn.Parameter(torch.full((32,), 8.0))

    def forward(self, x):
        return torch.sin(self.frequency * x)


index = torch.arange(1200)
which, along = index % 2, index.div(2, rounding_mode="floor") / 600
angle = 9 * along + which * torch.pi
points = torch.stack([along * torch.cos(angle), along * torch.sin(angle)], 1)
net = nn.Sequential(nn.Linear(2, 32), Sine(), nn.Linear(32, 2))
net.load_state_dict(load_file(sys.argv[1]))
right = (net(points).argmax(1) == which).float().mean().item()
print(f"accuracy {right:.4f}")
