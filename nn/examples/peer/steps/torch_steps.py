"""The steps of mod.rs in PyTorch on the CPU, made and measured alike:

torch_steps.py NAME THREADS [--mode eager|fused|channels-last|compiled] [--dtype f32|bf16]

eager           as a user writes them
fused           with the fused optimizer
channels-last   that, and images and parameters that lie channels last
compiled        fused, and torch.compile of the network with its loss
"""
import argparse, ctypes, json, os, pathlib, sys, time

arguments = argparse.ArgumentParser()
arguments.add_argument("name")
arguments.add_argument("threads", type=int)
arguments.add_argument("--mode", default="eager",
                       choices=["eager", "fused", "channels-last", "compiled"])
arguments.add_argument("--dtype", default="f32", choices=["f32", "bf16"])
A = arguments.parse_args()
os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = str(A.threads)

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

PEER = pathlib.Path(__file__).resolve().parents[1]
sys.path += [str(PEER), str(PEER.parents[1] / "tests/fixtures")]
import streams
from reference_models import DoubleConv, Down, Gpt, LstmModel, OutConv, ResNet

torch.set_num_threads(A.threads)
DTYPE = {"f32": torch.float32, "bf16": torch.bfloat16}[A.dtype]
FIRST_STEPS, TIME_S, STEPS_MIN, X, Y = 3, 2.5, 5, 1001, 1002


def uniform(stream, shape, bound=1.0):
    return torch.from_numpy(streams.uniform(stream, shape) * np.float32(bound))


def integers(stream, shape, modulo):
    return torch.from_numpy(streams.integers(stream, shape, modulo))


def stream(name):
    """The FNV-1a hash of a parameter's name."""
    value = 0xCBF29CE484222325
    for byte in name.encode():
        value = (value ^ byte) * 0x100000001B3 % (1 << 64)
    return value


def vgg11():
    layers, inputs = [], 3
    for outputs in [64, 0, 128, 0, 256, 256, 0, 512, 512, 0, 512, 512, 0]:
        if outputs:
            layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU(inplace=True)]
            inputs = outputs
        else:
            layers.append(nn.MaxPool2d(2))
    relu = lambda: nn.ReLU(inplace=True)
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(512, 512), relu(),
                         nn.Linear(512, 512), relu(), nn.Linear(512, 10))


class Inverted(nn.Sequential):
    is_residual = False

    def forward(self, x):
        y = super().forward(x)
        return y + x if self.is_residual else y


class MobileNetV2(nn.Module):
    def __init__(self):
        super().__init__()

        def unit(inputs, outputs, kernel, stride=1, groups=1):
            return [nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False),
                    nn.BatchNorm2d(outputs)]

        relu6 = lambda: nn.ReLU6(inplace=True)
        layers, inputs = [*unit(3, 32, 3, 2), relu6()], 32
        for expansion, outputs, blocks, first in [
            (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2),
            (6, 320, 1, 1),
        ]:
            for block in range(blocks):
                stride = first if block == 0 else 1
                hidden = inputs * expansion
                inner = [] if expansion == 1 else [*unit(inputs, hidden, 1), relu6()]
                inner += [*unit(hidden, hidden, 3, stride, hidden), relu6(), *unit(hidden, outputs, 1)]
                inverted = Inverted(*inner)
                inverted.is_residual = stride == 1 and inputs == outputs
                layers.append(inverted)
                inputs = outputs
        layers += [*unit(inputs, 1280, 1), relu6(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
        self.features, self.classifier = nn.Sequential(*layers), nn.Linear(1280, 100)

    def forward(self, x):
        return self.classifier(self.features(x))


class ChannelNorm(nn.LayerNorm):
    def forward(self, x):
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class ConvNeXtBlock(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.norm = nn.LayerNorm(channels, eps=1e-6)
        self.up, self.down = nn.Linear(channels, 4 * channels), nn.Linear(4 * channels, channels)
        self.scale = nn.Parameter(torch.empty(channels))

    def forward(self, x):
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = self.down(F.gelu(self.up(y))) * self.scale
        return y.permute(0, 3, 1, 2) + x


class ConvNeXt(nn.Module):
    def __init__(self):
        super().__init__()
        layers, inputs = [], 3
        for channels, blocks in [(40, 2), (80, 2), (160, 6), (320, 2)]:
            if inputs == 3:
                layers += [nn.Conv2d(3, channels, 4, 4), ChannelNorm(channels, eps=1e-6)]
            else:
                layers += [ChannelNorm(inputs, eps=1e-6), nn.Conv2d(inputs, channels, 2, 2)]
            layers += [ConvNeXtBlock(channels) for _ in range(blocks)]
            inputs = channels
        self.features, self.norm = nn.Sequential(*layers), nn.LayerNorm(inputs, eps=1e-6)
        self.head = nn.Linear(inputs, 100)

    def forward(self, x):
        return self.head(self.norm(self.features(x).mean([2, 3])))


class Dense(nn.Sequential):
    def forward(self, x):
        return torch.cat([x, super().forward(x)], 1)


class DenseNet(nn.Module):
    def __init__(self):
        super().__init__()

        def unit(inputs, outputs, kernel):
            return [nn.BatchNorm2d(inputs), nn.ReLU(inplace=True),
                    nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2, bias=False)]

        growth, channels = 12, 24
        layers = [nn.Conv2d(3, channels, 3, padding=1, bias=False)]
        for block in range(3):
            for _ in range(6):
                layers.append(Dense(*unit(channels, 4 * growth, 1), *unit(4 * growth, growth, 3)))
                channels += growth
            if block < 2:
                layers += [*unit(channels, channels // 2, 1), nn.AvgPool2d(2)]
                channels //= 2
        layers += [nn.BatchNorm2d(channels), nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
        self.features, self.classifier = nn.Sequential(*layers), nn.Linear(channels, 10)

    def forward(self, x):
        return self.classifier(self.features(x))


class Up(nn.Module):
    """Without the padding for images of odd sizes, which takes a copy of each."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.up = nn.ConvTranspose2d(inputs, inputs // 2, 2, stride=2)
        self.conv = DoubleConv(inputs, outputs)

    def forward(self, x, beside):
        return self.conv(torch.cat([beside, self.up(x)], 1))


class UNet(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.inc = DoubleConv(3, width)
        for i in range(4):
            setattr(self, f"down{i + 1}", Down(width << i, width << (i + 1)))
        for i in range(4):
            setattr(self, f"up{i + 1}", Up(width << (4 - i), width << (3 - i)))
        self.outc = OutConv(width, 2)

    def forward(self, x):
        levels = [self.inc(x)]
        for i in range(4):
            levels.append(getattr(self, f"down{i + 1}")(levels[-1]))
        x = levels.pop()
        for i in range(4):
            x = getattr(self, f"up{i + 1}")(x, levels.pop())
        return self.outc(x)


class Dcgan(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        up, inputs = [], 100
        for outputs, window in [(8 * width, (4, 1, 0)), (4 * width, (4, 2, 1)), (2 * width, (4, 2, 1)),
                                (width, (4, 2, 1))]:
            up += [nn.ConvTranspose2d(inputs, outputs, *window, bias=False), nn.BatchNorm2d(outputs),
                   nn.ReLU(inplace=True)]
            inputs = outputs
        up += [nn.ConvTranspose2d(width, 3, 4, 2, 1, bias=False), nn.Tanh()]
        down = [nn.Conv2d(3, width, 4, 2, 1, bias=False), nn.LeakyReLU(0.2, inplace=True)]
        for inputs in (width, 2 * width, 4 * width):
            down += [nn.Conv2d(inputs, 2 * inputs, 4, 2, 1, bias=False), nn.BatchNorm2d(2 * inputs),
                     nn.LeakyReLU(0.2, inplace=True)]
        down += [nn.Conv2d(8 * width, 1, 4, 1, 0, bias=False), nn.Flatten()]
        self.generator, self.discriminator = nn.Sequential(*up), nn.Sequential(*down)

    def loss(self, noise, real):
        loss = F.binary_cross_entropy_with_logits
        made, real = self.discriminator(self.generator(noise)), self.discriminator(real)
        return loss(made, torch.ones_like(made)) + loss(real, torch.zeros_like(real))


class Gated(nn.Module):
    def __init__(self, dilation):
        super().__init__()
        self.dilated = nn.Conv1d(64, 128, 2, dilation=dilation)
        self.residual, self.skip = nn.Conv1d(64, 64, 1), nn.Conv1d(64, 128, 1)
        self.dilation = dilation

    def forward(self, x):
        value, gate = self.dilated(F.pad(x, (self.dilation, 0))).chunk(2, 1)
        gated = value.tanh() * gate.sigmoid()
        return self.residual(gated) + x, self.skip(gated)


class WaveNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(256, 64)
        self.layers = nn.ModuleList(Gated(1 << index % 8) for index in range(16))
        self.hidden, self.out = nn.Conv1d(128, 128, 1), nn.Conv1d(128, 256, 1)

    def forward(self, tokens):
        x, kept = self.table(tokens).transpose(1, 2), 0
        for layer in self.layers:
            x, skip = layer(x)
            kept = kept + skip
        return self.out(F.relu(self.hidden(F.relu(kept)))).transpose(1, 2)


class Bert(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.positions = nn.Embedding(8192, 256), nn.Embedding(128, 256)
        self.norm = nn.LayerNorm(256)
        layer = lambda: nn.TransformerEncoderLayer(256, 4, 1024, 0.0, "gelu", batch_first=True)
        self.layers = nn.ModuleList(layer() for _ in range(4))
        self.head = nn.Linear(256, 8192)

    def forward(self, tokens):
        x = self.norm(self.table(tokens) + self.positions.weight)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def turned(x, cos, sin):
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class LlamaLayer(nn.Module):
    def __init__(self, width=256, heads=8, groups=4, hidden=688):
        super().__init__()
        linear = lambda inputs, outputs: nn.Linear(inputs, outputs, bias=False)
        self.counts, self.head_width = (heads, groups), width // heads
        self.norm1, self.norm2 = nn.RMSNorm(width, 1e-5), nn.RMSNorm(width, 1e-5)
        self.q, self.o = linear(width, width), linear(width, width)
        self.k, self.v = linear(width, width * groups // heads), linear(width, width * groups // heads)
        self.gate, self.up, self.down = linear(width, hidden), linear(width, hidden), linear(hidden, width)

    def forward(self, x, cos, sin):
        (heads, groups), (b, t, d) = self.counts, x.shape
        y = self.norm1(x)
        split = lambda y, count: y.view(b, t, count, self.head_width).transpose(1, 2)
        q, k, v = split(self.q(y), heads), split(self.k(y), groups), split(self.v(y), groups)
        q, k = turned(q, cos, sin), turned(k, cos, sin)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.o(seen.transpose(1, 2).reshape(b, t, d))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(8192, 256)
        self.layers = nn.ModuleList(LlamaLayer() for _ in range(4))
        self.norm, self.head = nn.RMSNorm(256, 1e-5), nn.Linear(256, 8192, bias=False)
        rates = 10000.0 ** (-torch.arange(0, 32, 2).double() / 32)
        angles = torch.arange(256).double()[:, None] * rates
        self.cos, self.sin = angles.cos().to(DTYPE), angles.sin().to(DTYPE)

    def forward(self, tokens):
        x = self.table(tokens)
        for layer in self.layers:
            x = layer(x, self.cos, self.sin)
        return self.head(self.norm(x))


# The network, its batch, the shape and number of its labels, and its optimizer.
IMAGES = {
    "resnet18": (lambda: ResNet(1, [2, 2, 2, 2], 64, 1000), [16, 3, 64, 64], [16], 1000, "sgd"),
    "vgg11": (vgg11, [32, 3, 32, 32], [32], 10, "sgd"),
    "mobilenet-v2": (MobileNetV2, [16, 3, 64, 64], [16], 100, "sgd"),
    "convnext": (ConvNeXt, [16, 3, 64, 64], [16], 100, "adamw"),
    "densenet": (DenseNet, [32, 3, 32, 32], [32], 10, "sgd"),
    "unet": (UNet, [4, 3, 128, 128], [4, 128, 128], 2, "adamw"),
}
TOKENS = {
    "wavenet": (WaveNet, [4, 1024], 256),
    "bert": (Bert, [8, 128], 8192),
    "gpt2": (lambda: Gpt(8192, 128, 384, 6, 6, tied=False), [8, 128], 8192),
    "llama": (Llama, [4, 256], 8192),
    "lstm": (lambda: LstmModel(10000, 256, 256, 2), [32, 64], 10000),
}


def prepare(name):
    """The network, its loss as a function, and the name of its optimizer."""
    if name == "dcgan":
        model = Dcgan()
        x, labels = uniform(X, [32, 100, 1, 1]).to(DTYPE), uniform(Y, [32, 3, 64, 64]).to(DTYPE)
        return model, model.loss, [x, labels], "adamw"
    if name in IMAGES:
        new, shape, label_shape, classes, optimizer = IMAGES[name]
        model, x, labels = new(), uniform(X, shape).to(DTYPE), integers(Y, label_shape, classes)
        return model, lambda x, labels: F.cross_entropy(model(x), labels), [x, labels], optimizer
    new, shape, vocabulary = TOKENS[name]
    model, x = new(), integers(X, shape, vocabulary)
    labels = integers(Y, [shape[0] * shape[1]], vocabulary)
    loss = lambda x, labels: F.cross_entropy(model(x).flatten(0, 1), labels)
    return model, loss, [x, labels], "adamw"


model, loss, batch, optimizer = prepare(A.name)
with torch.no_grad():
    for name, parameter in model.named_parameters():
        if parameter.dim() < 2:
            parameter.fill_(0.0 if "bias" in name else 1.0)
        else:
            bound = np.sqrt(np.float32(6) / np.float32(np.prod(parameter.shape[1:])))
            parameter.copy_(uniform(stream(name), parameter.shape, bound))
model.to(DTYPE).train()
if A.mode == "channels-last":
    model.to(memory_format=torch.channels_last)
    batch = [x.to(memory_format=torch.channels_last) if x.dim() == 4 else x for x in batch]
if A.mode == "compiled":
    loss = torch.compile(loss)
fused = True if A.mode != "eager" else None
if optimizer == "sgd":
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9, fused=fused)
else:
    optimizer = torch.optim.AdamW(model.parameters(), fused=fused)


def step():
    value = loss(*batch)
    optimizer.zero_grad(set_to_none=True)
    value.backward()
    optimizer.step()
    return value.item()


# What making the network left free is no memory of the steps.
ctypes.CDLL(None).malloc_trim(0)
print(json.dumps({"ready": True}), flush=True)
sys.stdin.readline()
print(json.dumps({"losses": [step() for _ in range(FIRST_STEPS)]}), flush=True)
sys.stdin.readline()
begin, times = time.perf_counter(), []
while len(times) < STEPS_MIN or time.perf_counter() - begin < TIME_S:
    start = time.perf_counter()
    step()
    times.append((time.perf_counter() - start) * 1e3)
times.sort()
print(json.dumps({"min_ms": round(times[0], 4), "median_ms": round(times[len(times) // 2], 4),
                  "runs": len(times)}), flush=True)
