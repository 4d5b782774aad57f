"""The twin of 06_mnist.rs in PyTorch: `python 06_mnist.py FOLDER`, same model, data, settings."""

import gzip
import sys
import time

import numpy
import torch
from torch import nn
from torch.nn import functional


class Block(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(outputs)

    def forward(self, x):
        return functional.relu(self.norm(self.conv(x)))


class Net(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.stem = Block(1, width, 2)
        self.first = Block(width, width, 1)
        self.second = Block(width, width, 1)
        self.dropout = nn.Dropout(0.1)
        self.head = nn.Linear(width, 10)

    def forward(self, x):
        x = self.stem(x)
        x = self.first(x) + x
        x = self.second(x) + x
        return self.head(self.dropout(x.mean((-2, -1))))


def read(folder, part):
    def load(name, header):
        for suffix, opened in (("", open), (".gz", gzip.open)):
            try:
                with opened(f"{folder}/{name}{suffix}", "rb") as file:
                    return numpy.frombuffer(file.read()[header:], numpy.uint8)
            except FileNotFoundError:
                continue
        raise FileNotFoundError(name)

    images = load(f"{part}-images-idx3-ubyte", 16).reshape(-1, 1, 28, 28)
    labels = load(f"{part}-labels-idx1-ubyte", 8)
    return torch.from_numpy(images / numpy.float32(255)), torch.from_numpy(labels.astype("int64"))


def main():
    torch.manual_seed(0)
    train, test = read(sys.argv[1], "train"), read(sys.argv[1], "t10k")
    net = Net()
    optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)
    for epoch in range(2):
        started = time.time()
        net.train()
        for indices in torch.randperm(len(train[0])).split(128):
            optimizer.zero_grad()
            functional.cross_entropy(net(train[0][indices]), train[1][indices]).backward()
            optimizer.step()
        net.eval()
        with torch.no_grad():
            parts = zip(test[0].split(128), test[1].split(128))
            right = sum((net(images).argmax(1) == labels).sum().item() for images, labels in parts)
        accuracy, seconds = right / len(test[0]), time.time() - started
        print(f"epoch {epoch + 1}: accuracy {accuracy:.4f}, {seconds:.1f} s")


main()
