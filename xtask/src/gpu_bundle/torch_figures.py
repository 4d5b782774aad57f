"""What PyTorch does on the same device, as lines of JSON under the names of lowtide's figures.

torch_figures.py [--small]

The main job is trained eagerly, compiled, and compiled with graphs. A line is printed when its
figure is known, so that what is cut short keeps what it has.
"""

import ctypes
import json
import statistics
import sys
import time

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
    nn = torch.nn
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


def matmul(size):
    a = torch.full((size, size), 1.0, device="cuda")
    b = torch.full((size, size), 0.5, device="cuda")
    for name, is_tf32 in (("matmul_f32", False), ("matmul_tf32", True)):
        torch.backends.cuda.matmul.allow_tf32 = is_tf32
        products = lambda: [a @ b for _ in range(PRODUCTS)]
        seconds = median(lambda: timed(products)) / PRODUCTS
        figure(f"{name}_{size}", "seconds", seconds)
        figure(f"{name}_{size}_rate", "FLOP/s", 2 * size**3 / seconds)
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
        "matmul": lambda: matmul(size),
        "copy": lambda: copies(copy_bytes),
        "memory_calls": lambda: [memory_calls(n) for n in (2 * MIB, copy_bytes)],
        # Last: compiling takes a minute or more.
        "train_compiled": lambda: train("default"),
        "train_compiled_with_graphs": lambda: train("reduce-overhead"),
    }
    for name, section in sections.items():
        try:
            section()
        except Exception as error:  # noqa: BLE001: the compiler raises what it likes
            refused(name, error)


try:
    import torch
except ImportError as error:
    refused("torch", error)
else:
    main()
