"""The operations of cases.rs in PyTorch on the CPU, timed the same way:

torch_ops.py WORKLOAD THREADS [--mode eager|tuned|compile]

eager    as a user calls them
tuned    convolutions and pooling over channels_last
compile  torch.compile of the call
"""
import argparse, json, os, time

arguments = argparse.ArgumentParser()
arguments.add_argument("workload")
arguments.add_argument("threads", type=int)
arguments.add_argument("--mode", default="eager", choices=["eager", "tuned", "compile"])
A = arguments.parse_args()
os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = str(A.threads)

import torch
import torch.nn.functional as F

import streams

torch.set_num_threads(A.threads)
aten = torch.ops.aten


def uniform(stream, *shape):
    return torch.from_numpy(streams.uniform(stream, shape))


def image(stream, *shape):
    x = uniform(stream, *shape)
    return x.to(memory_format=torch.channels_last) if A.mode == "tuned" else x


def conv(part, batch, inputs, side, outputs):
    x, w = image(1, batch, inputs, side, side), image(2, outputs, inputs, 3, 3)
    dy = image(3, batch, outputs, side, side)

    def backward(mask):
        sizes = (None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
        return aten.convolution_backward(dy, x, w, *sizes, mask)

    return {
        "": lambda: F.conv2d(x, w, padding=1),
        "to-input": lambda: backward([True, False, False])[0],
        "to-weight": lambda: backward([False, True, False])[1],
    }[part]


def max_pool(part, batch, channels, side):
    x, dy = image(1, batch, channels, side, side), image(2, batch, channels, side // 2, side // 2)
    rest = ([2, 2], [2, 2], [0, 0], [1, 1], False)
    found = aten.max_pool2d_with_indices(x, *rest)[1]
    if part == "backward":
        return lambda: aten.max_pool2d_with_indices_backward(dy, x, *rest, found)
    # As in training: with the indices.
    return lambda: aten.max_pool2d_with_indices(x, *rest)[0]


def layer_norm(part, rows, columns):
    x, dy = uniform(1, rows, columns), uniform(2, rows, columns)
    w, b = uniform(3, columns), uniform(4, columns)
    _, mean, rstd = aten.native_layer_norm(x, [columns], w, b, 1e-5)
    if part == "backward":
        rest = (dy, x, [columns], mean, rstd, w, b, [True, True, True])
        return lambda: aten.native_layer_norm_backward(*rest)[0]
    return lambda: aten.native_layer_norm(x, [columns], w, b, 1e-5)[0]


def gelu(part, rows, columns):
    x, dy = uniform(1, rows, columns), uniform(2, rows, columns)
    return (lambda: aten.gelu_backward(dy, x)) if part == "backward" else (lambda: F.gelu(x))


def attention(part, *shape):
    q, k, v, dy = (uniform(stream, *shape) for stream in (1, 2, 3, 4))
    forward = aten._scaled_dot_product_flash_attention_for_cpu
    y, logsumexp = forward(q, k, v, 0.0, True)
    if part == "backward":
        backward = aten._scaled_dot_product_flash_attention_for_cpu_backward
        return lambda: backward(dy, q, k, v, y, logsumexp, 0.0, True)[0]
    return lambda: forward(q, k, v, 0.0, True)[0]


CONV_3_16, CONV_3_32 = (128, 3, 32, 16), (64, 3, 64, 32)
CONV_32_64, CONV_64_128 = (64, 32, 32, 64), (64, 64, 16, 128)
OPS = {  # name: (steps, operation, part, sizes)
    "w6-conv-3-16": (100, conv, "", CONV_3_16),
    "w6-conv-3-16-to-weight": (100, conv, "to-weight", CONV_3_16),
    "w6-conv-3-32": (40, conv, "", CONV_3_32),
    "w6-conv-3-32-to-weight": (40, conv, "to-weight", CONV_3_32),
    "w6-conv-32-64": (40, conv, "", CONV_32_64),
    "w6-conv-32-64-to-input": (40, conv, "to-input", CONV_32_64),
    "w6-conv-32-64-to-weight": (40, conv, "to-weight", CONV_32_64),
    "w6-conv-64-128": (40, conv, "", CONV_64_128),
    "w6-conv-64-128-to-input": (40, conv, "to-input", CONV_64_128),
    "w6-conv-64-128-to-weight": (40, conv, "to-weight", CONV_64_128),
    "w6-max-pool": (100, max_pool, "", (64, 32, 64)),
    "w6-max-pool-backward": (100, max_pool, "backward", (64, 32, 64)),
    "w6-layer-norm": (400, layer_norm, "", (2048, 128)),
    "w6-layer-norm-backward": (400, layer_norm, "backward", (2048, 128)),
    "w6-gelu": (200, gelu, "", (2048, 512)),
    "w6-gelu-backward": (200, gelu, "backward", (2048, 512)),
    "w6-attention": (200, attention, "", (16, 4, 128, 32)),
    "w6-attention-backward": (200, attention, "backward", (16, 4, 128, 32)),
}
PEER = "torch-" + A.mode
if A.workload not in OPS:
    print(json.dumps({"peer": PEER, "workload": A.workload, "unsupported": "not an operation"}))
    raise SystemExit
steps, build, part, sizes = OPS[A.workload]


def status_mb(key):
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith(key)) / 1024


def processor_s():
    """Processor seconds of this process and of the whole machine."""
    with open("/proc/stat") as lines:
        machine = lines.readline().split()
    return time.process_time(), sum(int(machine[k]) for k in (1, 2, 3, 6, 7, 8)) / 100


with torch.no_grad():
    run = build(part, *sizes)
    magnitude = run().abs().double().mean().item()
    run = torch.compile(run) if A.mode == "compile" else run
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # the peak counts from here
    base_mb = status_mb("VmRSS")

    def timed():
        start = time.perf_counter()
        run()
        return (time.perf_counter() - start) * 1e3

    first_ms = timed()
    for _ in range(4):
        timed()
    before, start = processor_s(), time.perf_counter()
    ms = sorted(timed() for _ in range(steps))
    wall_s = time.perf_counter() - start
    own, machine = (after - earlier for earlier, after in zip(before, processor_s()))
median_ms = (ms[(steps - 1) // 2] + ms[steps // 2]) / 2
print(json.dumps({
    "peer": PEER, "workload": A.workload, "batch": sizes[0], "threads": A.threads, "steps": steps,
    "median_step_ms": round(median_ms, 3), "min_step_ms": round(ms[0], 3),
    "max_step_ms": round(ms[-1], 3), "first_step_ms": round(first_ms, 1),
    "samples_per_s": round(sizes[0] / median_ms * 1e3, 1),
    "peak_rss_mb": round(status_mb("VmHWM"), 1), "base_rss_mb": round(base_mb, 1),
    "cores_busy": round(own / wall_s, 2), "others_busy": round(max(0, machine - own) / wall_s, 2),
    "loss_first": round(magnitude, 6), "loss_8th": round(magnitude, 6),
    "loss_last": round(magnitude, 6),
}))
