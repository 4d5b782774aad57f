"""The operations of operations.txt in PyTorch on the CPU, measured as mod.rs measures them:

torch_sweep.py THREADS [--mode eager|channels-last] [--dtype f32|bf16] [--only TEXT] [--turns]

eager           as a user calls them
channels-last   operations on images alone, over images that lie channels last

With `--turns` lines of input name the operations; one that the mode does not have is answered by {}.
"""
import argparse, json, os, pathlib, sys, time

arguments = argparse.ArgumentParser()
arguments.add_argument("threads", type=int)
arguments.add_argument("--mode", default="eager", choices=["eager", "channels-last"])
arguments.add_argument("--dtype", default="f32", choices=["f32", "bf16"])
arguments.add_argument("--only", default="")
arguments.add_argument("--turns", action="store_true")
A = arguments.parse_args()
os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = str(A.threads)

import torch
import torch.nn.functional as F

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
import streams

torch.set_num_threads(A.threads)
DTYPE = {"f32": torch.float32, "bf16": torch.bfloat16}[A.dtype]
TIME_S, RUNS_MIN, RUNS_MAX, EPS = 0.25, 5, 300, 1e-5
OF_IMAGES = {"conv", "conv-transpose", "batch-norm", "relu", "add", "max-pool"}


def fill(stream, shape):
    x = torch.from_numpy(streams.uniform(stream, shape)).to(DTYPE)
    return x.to(memory_format=torch.channels_last) if A.mode == "channels-last" and x.dim() == 4 else x


def backward(forward, dy, *inputs):
    """The backward pass alone, with the gradients of all inputs."""
    inputs = [x.requires_grad_() for x in inputs]
    y = forward(*inputs)
    return lambda: torch.autograd.grad(y, inputs, dy, retain_graph=True)[0]


def convolution(operation, part, size):
    one = size("h") == 1
    pair = lambda name, first: [first if one else size(name), size(name)]
    stride, padding, dilation = pair("s", 1), pair("p", 0), pair("d", 1)
    (kh, kw), groups, outs = pair("k", 1), size("g"), size("o")
    x = fill(1, [size(name) for name in "nchw"])
    is_transposed = operation == "conv-transpose"
    ins = x.shape[1]
    w = fill(2, [ins, outs // groups, kh, kw] if is_transposed else [outs, ins // groups, kh, kw])
    convolve = lambda: torch.convolution(
        x, w, None, stride, padding, dilation, is_transposed, [0, 0], groups)
    if part == "forward":
        return convolve
    dy = fill(3, convolve().shape)
    sizes = (None, stride, padding, dilation, is_transposed, [0, 0], groups)
    mask = [part == "to-input", part == "to-weight", False]
    at = 0 if part == "to-input" else 1
    return lambda: torch.ops.aten.convolution_backward(dy, x, w, *sizes, mask)[at]


def linear(part, size):
    m, k, n = size("m"), size("k"), size("n")
    x, w, dy = fill(1, [m, k]), fill(2, [n, k]), fill(3, [m, n])
    return {
        "forward": lambda: F.linear(x, w),
        "to-input": lambda: dy @ w,
        "to-weight": lambda: dy.t() @ x,
    }[part]


def attention(part, size):
    shape = [size(name) for name in ("n", "heads", "t", "d")]
    q, k, v, dy = (fill(stream, shape) for stream in (1, 2, 3, 4))
    attend = lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=size("causal") == 1)
    return (lambda: attend(q, k, v)) if part == "forward" else backward(attend, dy, q, k, v)


def of_rows(operation, part, size):
    rows, columns = size("rows"), size("columns")
    x = fill(1, [rows, columns])
    if operation == "cross-entropy":
        labels = torch.from_numpy(streams.integers(2, [rows], columns))
        loss = lambda x: F.cross_entropy(x, labels, reduction="sum")
        return (lambda: loss(x)) if part == "forward" else backward(loss, None, x)
    dy, w, b = fill(2, [rows, columns]), fill(3, [columns]), fill(4, [columns])
    forward, inputs = {
        "layer-norm": (lambda x, w, b: F.layer_norm(x, [columns], w, b, EPS), [x, w, b]),
        "rms-norm": (lambda x, w: F.rms_norm(x, [columns], w, EPS), [x, w]),
        "softmax": (lambda x: F.softmax(x, 1), [x]),
        "gelu": (lambda x: F.gelu(x), [x]),
    }[operation]
    return (lambda: forward(*inputs)) if part == "forward" else backward(forward, dy, *inputs)


def of_images(operation, part, size):
    shape = [size(name) for name in "nchw"]
    x, dy = fill(1, shape), fill(2, shape)
    w, b = fill(3, shape[1:2]), fill(4, shape[1:2])
    if operation == "max-pool":
        pool = lambda x: F.max_pool2d(x, size("k"), size("s"), size("p"), return_indices=True)[0]
        dy = fill(2, pool(x).shape)
    forward, inputs = {
        "add": (lambda x: x + dy, [x]),
        "relu": (F.relu, [x]),
        "batch-norm": (lambda x, w, b: F.batch_norm(x, None, None, w, b, True, 0.0, EPS), [x, w, b]),
        "max-pool": (lambda x: pool(x), [x]),
    }[operation]
    return (lambda: forward(*inputs)) if part == "forward" else backward(forward, dy, *inputs)


def parts(operation, size):
    if operation == "conv" and size("c") == 3:
        return ["forward", "to-weight"]
    if operation in ("conv", "conv-transpose", "linear"):
        return ["forward", "to-input", "to-weight"]
    return ["forward"] if operation == "add" else ["forward", "backward"]


def prepare(operation, part, size):
    if operation in ("conv", "conv-transpose"):
        return convolution(operation, part, size)
    if operation in OF_IMAGES:
        return of_images(operation, part, size)
    if operation in ("linear", "attention"):
        return {"linear": linear, "attention": attention}[operation](part, size)
    return of_rows(operation, part, size)


def measure(name, run):
    magnitude = run().detach().double().abs().mean().item()

    def timed():
        start = time.perf_counter()
        run()
        return (time.perf_counter() - start) * 1e3

    timed()
    begin, times = time.perf_counter(), []
    while len(times) < RUNS_MIN or (time.perf_counter() - begin < TIME_S and len(times) < RUNS_MAX):
        times.append(timed())
    times.sort()
    print(json.dumps({
        "peer": f"torch-{A.mode}", "operation": name, "runs": len(times),
        "min_ms": round(times[0], 4), "median_ms": round(times[len(times) // 2], 4),
        "magnitude": magnitude,
    }), flush=True)


def operations():
    """The name, operation, part and sizes of each operation that the mode differs in."""
    for line in pathlib.Path(__file__).with_name("operations.txt").read_text().splitlines():
        if not line or line.startswith("#"):
            continue
        network, layer, operation, *sizes = line.split()
        sizes = {"s": 1, "p": 0, "d": 1, "g": 1} | {k: int(v) for k, v in (w.split("=") for w in sizes)}
        size = sizes.__getitem__
        if A.mode == "channels-last" and (operation not in OF_IMAGES or size("h") == 1):
            continue
        for part in parts(operation, size):
            yield f"{network} {layer} {operation} {part}", (operation, part, size)


found = dict(operations())
for name in map(str.strip, sys.stdin) if A.turns else [name for name in found if A.only in name]:
    if name not in found:
        print("{}", flush=True)
        continue
    with torch.set_grad_enabled(found[name][1] == "backward"):
        measure(name, prepare(*found[name]))
