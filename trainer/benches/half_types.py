"""The workloads of half_types.rs in PyTorch, from the values and data that it left in FOLDER:

    cargo bench -p lowtide-trainer --bench half_types -- FOLDER
    python3 trainer/benches/half_types.py FOLDER

Operations are cast by torch.autocast. Peaks are those of what PyTorch's allocator for the CPU was
asked for in a step, with parameters and optimizer states, as the profiler counts it.
"""

import os
import sys
import time

os.environ.setdefault("OMP_NUM_THREADS", "2")

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import nn
from torch.profiler import ProfilerActivity, profile

FOLDER = sys.argv[1]
CONTEXT, WIDTH, HEADS, BLOCKS = 128, 128, 4, 4
# Samples of a batch, batches of the data, steps.
WORKLOADS = {"w1": (128, 4, 12), "w2": (64, 2, 4), "w3": (128, 4, 40), "w4": (16, 100, 100)}


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        b, t, _ = x.shape
        qkv = self.qkv(self.ln1(x)).view(b, t, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(*qkv, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, WIDTH))
        return x + self.down(F.gelu(self.up(self.ln2(x))))


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok, self.pos = nn.Embedding(128, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 128, bias=False)

    def forward(self, tokens):
        x = self.tok(tokens) + self.pos.weight
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)).flatten(0, 1)


def cnn(side, channels):
    layers, inputs = [], 3
    for outputs in channels:
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        inputs, side = outputs, side // 2
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(inputs * side * side, 10))


def mlp():
    first, second = nn.Linear(784, 512), nn.Linear(512, 512)
    return nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), nn.Linear(512, 10))


MODELS = {
    "w1": lambda: cnn(32, [16]),
    "w2": lambda: cnn(64, [32, 64, 128]),
    "w3": mlp,
    "w4": Gpt,
}
SHAPES = {"w1": (3, 32, 32), "w2": (3, 64, 64), "w3": (784,)}


def load(name, what, dtype):
    return torch.from_numpy(np.fromfile(f"{FOLDER}/{name}.{what}", dtype))


def batches_of(name, size):
    if name == "w4":
        tokens = load(name, "tokens", np.int64).view(-1, size, CONTEXT + 1)
        return [(part[:, :-1], part[:, 1:].flatten()) for part in tokens]
    images = load(name, "images", np.float32).view(-1, size, *SHAPES[name])
    return list(zip(images, load(name, "labels", np.int64).view(-1, size)))


def peak_of(step, kept_bytes):
    """The most that a step holds at once, with what it began with."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        step()
    held = peak = kept_bytes
    for event in recorded.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
    return peak


print("workload type  peak MiB  ms a step  loss, at five places")
for name, (size, _, steps) in WORKLOADS.items():
    for kind, dtype in [("f32", None), ("bf16", torch.bfloat16), ("f16", torch.float16)]:
        model = MODELS[name]()
        model.load_state_dict(load_file(f"{FOLDER}/{name}.safetensors"))
        optimizer = (
            torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, fused=True)
            if name == "w3"
            else torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
        )
        scaler = torch.amp.GradScaler("cpu", enabled=dtype == torch.float16)
        data, losses, times = batches_of(name, size), [], []

        def step():
            x, labels = data[len(losses) % len(data)]
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=dtype or torch.bfloat16, enabled=dtype is not None):
                loss = F.cross_entropy(model(x), labels)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss.item())

        for _ in range(steps):
            started = time.perf_counter()
            step()
            times.append((time.perf_counter() - started) * 1e3)
        shown = [f"{losses[(steps - 1) * part // 4]:.4f}" for part in range(5)]
        optimizer.zero_grad()
        states = [v for state in optimizer.state.values() for v in state.values()]
        tensors = [*model.parameters(), *(v for v in states if torch.is_tensor(v))]
        kept = sum(v.numel() * v.element_size() for v in tensors)
        kept += data[0][0].numel() * data[0][0].element_size()
        peak = peak_of(step, kept) / 2**20
        times.sort()
        print(f"{name:8} {kind:4} {peak:9.2f} {times[steps // 2]:10.2f}  {' '.join(shown)}")
