"""What PyTorch does on the same device, as lines of JSON under the names of lowtide's figures.

torch_figures.py [--small]

The main job is trained eagerly, compiled, and compiled with graphs; GPT-2 with 124 million
parameters, ResNet-50 and a U-Net eagerly and compiled, in bf16 by autocast, on the batches of
lowtide's recipes. A line is printed when its figure is known, so that what is cut short keeps what
it has.
"""

import ctypes
import json
import statistics
import sys
import time

try:
    import torch
    from torch import nn
except ImportError as error:
    reason = " ".join(str(error).split())
    print(json.dumps({"name": "torch", "refused": reason}), flush=True)
    sys.exit()

WARM_UP = 2
RUNS = 9
PRODUCTS = 8
MIB = 1 << 20
BATCH = 256
TRAINING_SAMPLES = 1536
EPOCHS = 10


def figure(name, unit, value):
    print(json.dumps({"name": name, "unit": unit, "value": value}), flush=True)


def said(name, text):
    print(json.dumps({"name": name, "text": text}), flush=True)


def refused(name, reason):
    reason = " ".join(str(reason).split())
    print(json.dumps({"name": name, "refused": reason}), flush=True)


def median(run):
    for _ in range(WARM_UP):
        run()
    return statistics.median(run() for _ in range(RUNS))


def timed(work):
    torch.cuda.synchronize()
    started = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return time.perf_counter() - started


def train(mode=None, epochs=EPOCHS):
    """The main job of lowtide: convolution 3x3 with 64 channels, ReLU, max pool 2x2, linear, on
    images of 8x8, in batches of 256, with Adam. The loss is read after each step, as lowtide
    does. The images are noise: they change neither memory nor time."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(64 * 4 * 4, 10),
    ).cuda()  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    forward = model if mode is None else torch.compile(model, mode=mode)
    suffix = "" if mode is None else "_compiled" if mode == "default" else "_compiled_with_graphs"
    images = torch.randn(TRAINING_SAMPLES, 1, 8, 8)
    labels = torch.randint(10, (TRAINING_SAMPLES,))
    torch.cuda.reset_peak_memory_stats()
    seconds = []
    for epoch in range(epochs):
        for start in range(0, TRAINING_SAMPLES, BATCH):
            started = time.perf_counter()
            x = images[start : start + BATCH].cuda()
            y = labels[start : start + BATCH].cuda()
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(forward(x), y)
            loss.backward()
            optimizer.step()
            loss.item()
            if epoch > 0:
                seconds.append(time.perf_counter() - started)
    figure(f"train{suffix}_step", "seconds", statistics.median(seconds))
    figure(f"train{suffix}_peak", "bytes", torch.cuda.max_memory_reserved())
    figure(f"train{suffix}_peak_allocated", "bytes", torch.cuda.max_memory_allocated())


class Block(nn.Module):
    """Of GPT-2: Radford et al., "Language models are unsupervised multitask learners" (2019)."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        b, t, width = x.shape
        qkv = self.qkv(self.ln1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(*qkv, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, width))
        return x + self.down(nn.functional.gelu(self.up(self.ln2(x))))


class Gpt(nn.Module):
    def __init__(self, vocabulary=50_257, context=1024, width=768, heads=12, blocks=12):
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(blocks)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tok.weight

    def forward(self, ids):
        x = self.tok(ids) + self.pos(torch.arange(ids.shape[1], device=ids.device))
        return self.head(self.norm(self.blocks(x))).flatten(0, 1)


class Bottleneck(nn.Module):
    """Of ResNet-50: He et al., "Deep residual learning for image recognition" (2016), with the
    stride in the convolution 3x3."""

    def __init__(self, inputs, width, stride):
        super().__init__()
        ends = [(inputs, width, 1, 1), (width, width, 3, stride), (width, 4 * width, 1, 1)]
        parts = []
        for start, end, kernel, step in ends:
            parts += [conv(start, end, kernel, step), nn.BatchNorm2d(end), nn.ReLU(True)]
        self.body = nn.Sequential(*parts[:-1])
        self.side = nn.Identity()
        if stride > 1 or inputs != 4 * width:
            norm = nn.BatchNorm2d(4 * width)
            self.side = nn.Sequential(conv(inputs, 4 * width, 1, stride), norm)

    def forward(self, x):
        return torch.relu(self.body(x) + self.side(x))


def conv(start, end, kernel, stride=1):
    return nn.Conv2d(start, end, kernel, stride, padding=kernel // 2, bias=False)


def resnet50():
    blocks, inputs = [], 64
    for width, count in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for index in range(count):
            stride = 2 if index == 0 and width > 64 else 1
            blocks.append(Bottleneck(inputs, width, stride))
            inputs = 4 * width
    stem = [conv(3, 64, 7, 2), nn.BatchNorm2d(64), nn.ReLU(True), nn.MaxPool2d(3, 2, 1)]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000)]
    return nn.Sequential(*stem, *blocks, *head)


class UNet(nn.Module):
    """Ronneberger et al., "U-Net: convolutional networks for biomedical image segmentation"
    (2015), with padded convolutions and batch normalisation."""

    def __init__(self, channels, width, classes):
        super().__init__()
        widths = [width << level for level in range(5)]
        self.downs = nn.ModuleList(map(double_conv, [channels, *widths], widths))
        pairs = list(zip(widths[:0:-1], widths[-2::-1]))
        self.ups = nn.ModuleList(nn.ConvTranspose2d(a, b, 2, 2) for a, b in pairs)
        self.convs = nn.ModuleList(double_conv(a, b) for a, b in pairs)
        self.out = nn.Conv2d(width, classes, 1)

    def forward(self, x):
        beside = []
        for level, down in enumerate(self.downs):
            x = down(nn.functional.max_pool2d(x, 2) if level else x)
            beside.append(x)
        beside.pop()
        for up, convs in zip(self.ups, self.convs):
            x = convs(torch.cat([beside.pop(), up(x)], 1))
        return self.out(x)


def double_conv(start, end):
    first = [conv(start, end, 3), nn.BatchNorm2d(end), nn.ReLU(True)]
    return nn.Sequential(*first, conv(end, end, 3), nn.BatchNorm2d(end), nn.ReLU(True))


def models():
    """Name, model, optimizer, batch and the precision, as lowtide's recipes have them."""
    images, classes = torch.randn(32, 3, 224, 224), torch.randint(1000, (32,))
    adamw = lambda model: torch.optim.AdamW(model.parameters(), lr=6e-4, fused=True)
    sgd = lambda model: torch.optim.SGD(
        model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4, fused=True
    )
    tokens = torch.randint(50_257, (8, 1025))
    text = (tokens[:, :-1].contiguous(), tokens[:, 1:].flatten())
    pixels = (torch.randn(16, 1, 128, 128), torch.randint(11, (16, 128, 128)))
    yield "gpt2_124m_bf16", Gpt, adamw, text, True, 1.0
    yield "resnet50_bf16", resnet50, sgd, (images, classes), True, None
    yield "resnet50_f32", resnet50, sgd, (images, classes), False, None
    yield "unet_bf16", lambda: UNet(1, 64, 11), adamw, pixels, True, None


def train_model(of, mode=None, steps=20):
    """Steps of one model, on the same batch: it is copied to the device each time, and the loss is
    read after each step, as lowtide does."""
    name, make, make_optimizer, (x, y), is_half, clip = of
    torch.manual_seed(0)
    torch.cuda.empty_cache()
    model = make().cuda()
    optimizer = make_optimizer(model)
    forward = model if mode is None else torch.compile(model, mode=mode)
    suffix = "" if mode is None else "_compiled"
    x, y = x.pin_memory(), y.pin_memory()
    seconds = []
    torch.cuda.reset_peak_memory_stats()
    for step in range(steps + 3):
        started = time.perf_counter()
        on_device = [part.cuda(non_blocking=True) for part in (x, y)]
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16, enabled=is_half):
            loss = nn.functional.cross_entropy(forward(on_device[0]), on_device[1])
        loss.backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        loss.item()
        if step >= 3:
            seconds.append(time.perf_counter() - started)
    figure(f"{name}{suffix}_step", "seconds", statistics.median(seconds))
    figure(f"{name}{suffix}_peak", "bytes", torch.cuda.max_memory_reserved())
    figure(f"{name}{suffix}_peak_allocated", "bytes", torch.cuda.max_memory_allocated())


def train_models(mode=None):
    for of in models():
        try:
            train_model(of, mode)
        except Exception as error:  # noqa: BLE001: the compiler raises what it likes
            refused(f"{of[0]}{'' if mode is None else '_compiled'}", error)


def gpt2_layers(rows):
    """The layers of GPT-2's smallest, forwards, in bf16."""
    layers = {
        "qkv": (768, 2304), "proj": (768, 768), "up": (768, 3072), "down": (3072, 768),
        "head": (768, 50_257),
    }  # fmt: skip
    for name, (inputs, outputs) in layers.items():
        noise = lambda *dims: torch.randn(*dims, device="cuda", dtype=torch.bfloat16)
        x, w, b = noise(rows, inputs), noise(outputs, inputs), noise(outputs)
        products = lambda: [nn.functional.linear(x, w, b) for _ in range(PRODUCTS)]
        seconds = median(lambda: timed(products)) / PRODUCTS
        figure(f"gpt2_{name}_bf16_rate", "FLOP/s", 2 * rows * inputs * outputs / seconds)


def convolutions(images):
    """Convolutions of ResNet-50 and of a U-Net and their gradients, in bf16 and, as PyTorch does by
    default, in tf32: channels, rows and columns of x, channels of y, rows and columns of the kernel,
    stride."""
    shapes = {
        "stem": (3, 224, 64, 7, 2), "56": (64, 56, 64, 3, 1), "56_one": (64, 56, 256, 1, 1),
        "56_strided": (128, 56, 128, 3, 2), "28": (128, 28, 128, 3, 1), "14": (256, 14, 256, 3, 1),
        "14_one": (1024, 14, 256, 1, 1), "7": (512, 7, 512, 3, 1), "7_one": (512, 7, 2048, 1, 1),
        "unet_128": (64, 128, 64, 3, 1),
    }  # fmt: skip
    types = {"bf16": torch.bfloat16, "tf32": torch.float32}
    cases = [(of, dtype, *shape) for of, dtype in types.items() for shape in shapes.items()]
    for of, dtype, name, (ins, size, outs, kernel, stride) in cases:
        noise = lambda *dims: torch.randn(*dims, device="cuda", dtype=dtype)
        x, w = noise(images, ins, size, size), noise(outs, ins, kernel, kernel)
        pair = lambda value: [value, value]
        geometry = pair(stride), pair(kernel // 2), pair(1), False, pair(0), 1
        y = torch.ops.aten.convolution(x, w, None, *geometry)
        dy = torch.randn_like(y)
        operations = 2 * y.numel() * w.numel() / outs
        backward = torch.ops.aten.convolution_backward
        for what, run in (
            ("y", lambda: torch.ops.aten.convolution(x, w, None, *geometry)),
            ("dx", lambda: backward(dy, x, w, None, *geometry, (True, False, False))),
            ("dw", lambda: backward(dy, x, w, None, *geometry, (False, True, False))),
        ):
            seconds = median(lambda: timed(lambda: [run() for _ in range(PRODUCTS)])) / PRODUCTS
            figure(f"conv_{name}_{what}_{of}_rate", "FLOP/s", operations / seconds)


def matmul(size):
    a, b = torch.randn(size, size, device="cuda"), torch.randn(size, size, device="cuda")
    for name, is_tf32, dtype in (
        ("f32", False, torch.float32),
        ("tf32", True, torch.float32),
        ("bf16", False, torch.bfloat16),
        ("f16", False, torch.float16),
        ("f64", False, torch.float64),
    ):
        torch.backends.cuda.matmul.allow_tf32 = is_tf32
        x, y = a.to(dtype), b.to(dtype)
        products = lambda: [x @ y for _ in range(PRODUCTS)]
        seconds = median(lambda: timed(products)) / PRODUCTS
        figure(f"matmul_{name}_{size}", "seconds", seconds)
        figure(f"matmul_{name}_{size}_rate", "FLOP/s", 2 * size**3 / seconds)
    torch.backends.cuda.matmul.allow_tf32 = False


def copies(size_bytes):
    host = torch.full((size_bytes,), 7, dtype=torch.uint8).pin_memory()
    device = torch.empty(size_bytes, dtype=torch.uint8, device="cuda")
    seconds = median(lambda: timed(lambda: device.copy_(host, non_blocking=True)))
    figure("copy_to_device", "bytes/s", size_bytes / seconds)
    seconds = median(lambda: timed(lambda: host.copy_(device, non_blocking=True)))
    figure("copy_to_host", "bytes/s", size_bytes / seconds)


def memory_calls(size_bytes):
    """Memory through PyTorch's allocator from the driver and from its cache, and the driver's own
    calls, which PyTorch's context is current for."""
    mib = size_bytes // MIB
    given = []

    def through_torch():
        torch.cuda.empty_cache()
        torch.cuda.synchronize()
        started = time.perf_counter()
        block = torch.empty(size_bytes, dtype=torch.uint8, device="cuda")
        taken = time.perf_counter() - started
        del block
        started = time.perf_counter()
        torch.cuda.empty_cache()
        given.append(time.perf_counter() - started)
        return taken

    figure(f"allocate_{mib}_MiB_from_driver", "seconds", median(through_torch))
    figure(f"give_{mib}_MiB_to_driver", "seconds", statistics.median(given))

    def cached():
        started = time.perf_counter()
        torch.empty(size_bytes, dtype=torch.uint8, device="cuda")
        return time.perf_counter() - started

    figure(f"allocate_{mib}_MiB_from_cache", "seconds", median(cached))
    driver = ctypes.CDLL("libcuda.so.1")
    address = ctypes.c_uint64()
    frees = []

    def check(code, call):
        if code != 0:
            raise RuntimeError(f"{call} returned {code}")

    def straight():
        started = time.perf_counter()
        check(driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size_bytes)), "cuMemAlloc")
        taken = time.perf_counter() - started
        started = time.perf_counter()
        check(driver.cuMemFree_v2(address), "cuMemFree")
        frees.append(time.perf_counter() - started)
        return taken

    figure(f"cuMemAlloc_{mib}_MiB", "seconds", median(straight))
    figure(f"cuMemFree_{mib}_MiB", "seconds", statistics.median(frees))


def main():
    size, copy_bytes = (64, 4 * MIB) if "--small" in sys.argv else (4096, 256 * MIB)
    said("torch", f"PyTorch {torch.__version__}, CUDA {torch.version.cuda}")
    if not torch.cuda.is_available():
        return refused("device", "PyTorch finds no CUDA device")
    said("torch_device", torch.cuda.get_device_name(0))
    sections = {
        "train": train,
        "models": train_models,
        "matmul": lambda: matmul(size),
        "gpt2_layers": lambda: gpt2_layers(2 * size),
        "convolutions": lambda: convolutions(1 if "--small" in sys.argv else 32),
        "copy": lambda: copies(copy_bytes),
        "memory_calls": lambda: [memory_calls(n) for n in (2 * MIB, copy_bytes)],
        # Last: compiling takes a minute or more.
        "train_compiled": lambda: train("default"),
        "train_compiled_with_graphs": lambda: train("reduce-overhead"),
        "models_compiled": lambda: train_models("default"),
    }
    if "--small" in sys.argv:
        del sections["models"], sections["models_compiled"]
    for name, section in sections.items():
        try:
            section()
        except Exception as error:  # noqa: BLE001: the compiler raises what it likes
            refused(name, error)


if __name__ == "__main__":
    main()
