"""Writes PyTorch's OpInfo samples as cases: inputs as they lie in memory, arguments, outputs, a
seeded cotangent and the gradients of the inputs; error inputs with the exception they must raise.

    python opinfo.py OUT [--ops NAME ...] [--sample]

OUT gets `OP.jsonl`, one case a line, and `OP.bin`, the elements of all its tensors; `case.rs` of the
crate `lowtide-scoreboard` describes both. With `--sample` a few small cases of each operation go to
`sample.jsonl` and `sample.bin`; without it, `inventory.txt` gets every operation that PyTorch has
samples for, and how many of f32. The same PyTorch and seed write the same bytes.
"""

import os

# The instructions of the reference values in `tests/fixtures`: with AVX-512, some results differ.
os.environ.setdefault("ATEN_CPU_CAPABILITY", "avx2")
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX2")

import argparse
import json
import math
import pathlib
import platform
import random
import sys
import warnings
import zlib

import numpy
import torch
from torch.testing._internal.common_device_type import precisionOverride, toleranceOverride
from torch.testing._internal.common_methods_invocations import op_db

SEED = 28
DTYPES = {
    "f64": torch.float64,
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "i64": torch.int64,
    "i32": torch.int32,
    "u8": torch.uint8,
    "bool": torch.bool,
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
# Of `torch.testing.assert_close`; integers and truth values are compared exactly.
TOLERANCES = {"f64": (1e-7, 1e-7), "f32": (1.3e-6, 1e-5), "f16": (1e-3, 1e-5), "bf16": (1.6e-2, 1e-5)}
# The tests of PyTorch that compare results of one and the same operation. What others allow
# (compilers, decompositions) does not count here.
COMPARISONS = {None, "TestCommon", "TestUnaryUfuncs", "TestBinaryUfuncs", "TestReductions", "TestConsistency"}

# Cases of each operation in the sample that is checked in; of bf16 for networks' functions only.
SAMPLE = {"f64": 0, "f32": 1, "f16": 0, "bf16": 0, "i64": 0, "i32": 0, "u8": 0, "bool": 0, "error": 1}
NETWORK = {"bf16": 1}


def full_name(op):
    return f"{op.name}/{op.variant_test_name}" if op.variant_test_name else op.name


class Writer:
    """One operation's files."""

    def __init__(self, folder, name):
        stem = name.replace("/", "~")
        self.lines = open(folder / f"{stem}.jsonl", "w")
        self.bytes = open(folder / f"{stem}.bin", "wb")
        self.at = 0
        self.tensors = []
        self.known = {}

    def tensor(self, value):
        """The index of a tensor among those of the case; its storage up to its last element."""
        if id(value) not in self.known:
            self.known[id(value)] = (value, self.stored(value.detach()))
        return self.known[id(value)][1]

    def stored(self, value):
        if value.dtype not in NAMES or value.layout is not torch.strided:
            return {"foreign": str(value.dtype)}
        if value.is_conj() or value.is_neg():
            value = value.resolve_conj().resolve_neg()
        if value._is_zerotensor():  # A gradient that has no storage.
            value = torch.zeros(value.shape, dtype=value.dtype)
        shape, strides, offset = list(value.shape), list(value.stride()), value.storage_offset()
        span = 0
        if value.numel() > 0:
            span = 1 + sum((n - 1) * s for n, s in zip(shape, strides))
            # What lies far before the first element does not matter.
            kept = min(offset, 8)
            flat = torch.as_strided(value, (kept + span,), (1,), offset - kept)
            offset, span = kept, kept + span
            data = flat.contiguous().view(torch.uint8).numpy().tobytes()
        else:
            offset, data = 0, b""
        stored = {"dtype": NAMES[value.dtype], "shape": shape, "at": self.at, "len": span}
        if not value.is_contiguous():
            stored["strides"] = strides
        if offset:
            stored["offset"] = offset
        self.tensors.append(stored)
        self.bytes.write(data)
        self.at += len(data)
        return {"tensor": len(self.tensors) - 1}

    def value(self, value):
        if isinstance(value, torch.Tensor):
            return self.tensor(value)
        if value is None or isinstance(value, (bool, str)):
            return value
        if isinstance(value, (int, numpy.integer)):
            value = int(value)
            return value if -(2**63) <= value < 2**63 else {"other": str(value)}
        if isinstance(value, (float, numpy.floating)):
            value = float(value)
            return value if math.isfinite(value) else {"float": str(value)}
        if isinstance(value, complex):
            return {"complex": [value.real, value.imag]}
        if isinstance(value, torch.dtype):
            return {"dtype": NAMES.get(value, str(value))}
        if isinstance(value, (list, tuple)):
            return [self.value(item) for item in value]
        if isinstance(value, slice):
            return {"slice": [value.start, value.stop, value.step]}
        if value is Ellipsis:
            return {"ellipsis": True}
        return {"other": str(value)[:80]}

    def case(self, case):
        if not any(case.get("cotangents", [])):
            case.pop("cotangents", None)
        case = {key: value for key, value in case.items() if value not in ([], {}, 0)}
        self.lines.write(json.dumps(case | {"tensors": self.tensors}, separators=(",", ":")) + "\n")
        self.tensors, self.known = [], {}

    def close(self):
        self.lines.close()
        self.bytes.close()


def flat(value):
    if isinstance(value, (list, tuple)):
        return [item for part in value for item in flat(part)]
    return [value]


def tensors_in(value):
    """The tensors of arguments, in order."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [item for part in value for item in tensors_in(part)]
    if isinstance(value, dict):
        return [item for part in value.values() for item in tensors_in(part)]
    return []


def operands(*arguments):
    """The tensors of arguments that lowtide has a type for, each once."""
    return list({id(x): x for x in tensors_in(arguments) if x.dtype in NAMES}.values())


def mapped(value, function):
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
        items = [mapped(item, function) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if isinstance(value, dict):
        return {key: mapped(item, function) for key, item in value.items()}
    return value


def tolerance(op, dtype):
    """rtol, atol and where they are from, if not from `assert_close`."""
    (rtol, atol), source = TOLERANCES.get(dtype, (0.0, 0.0)), None
    for info in op.decorators or ():
        if getattr(info, "cls_name", "other") not in COMPARISONS:
            continue
        if getattr(info, "device_type", None) not in (None, "cpu"):
            continue
        for decorator in info.decorators:
            allowed = getattr(decorator, "d", {}).get(DTYPES[dtype])
            if allowed is None:
                continue
            if isinstance(decorator, toleranceOverride):
                found = (max(rtol, allowed.rtol), max(atol, allowed.atol))
            elif isinstance(decorator, precisionOverride):
                found = (rtol, max(atol, allowed))
            else:
                continue
            if found != (rtol, atol):
                (rtol, atol), source = found, f"{info.cls_name}.{info.test_name}"
    return rtol, atol, source


def cotangents(outputs, seed):
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randn(y.shape, generator=generator, dtype=torch.float64).to(y.dtype) for y in outputs
    ]


def evaluate(op, sample, dy=None, seed=0):
    """Outputs, cotangents of those that have a gradient, and the gradients of the inputs."""
    arguments = ([sample.input, *sample.args], sample.kwargs)
    leaves = [x for x in tensors_in(arguments) if x.requires_grad]
    outputs = flat(op(sample.input, *sample.args, **sample.kwargs))
    outputs = [torch.tensor(y) if isinstance(y, bool) else y for y in outputs]
    with_gradient = [y for y in outputs if isinstance(y, torch.Tensor) and y.requires_grad]
    if not leaves or not with_gradient:
        return outputs, [None] * len(outputs), leaves, [None] * len(leaves)
    seeds = cotangents(with_gradient, seed) if dy is None else dy
    gradients = torch.autograd.grad(with_gradient, leaves, seeds, allow_unused=True)
    remaining = iter(seeds)
    is_among = lambda y: isinstance(y, torch.Tensor) and y.requires_grad
    return outputs, [next(remaining) if is_among(y) else None for y in outputs], leaves, gradients


def differs(found, truth, rtol, atol):
    """Whether half of what is allowed, or more, is used up by PyTorch itself."""
    if not isinstance(found, torch.Tensor) or not isinstance(truth, torch.Tensor):
        return False
    if not found.is_floating_point() or found.shape != truth.shape:
        return False
    return not torch.allclose(found.double(), truth.double(), rtol / 2, atol / 2, equal_nan=True)


def truth_of(op, sample, dtype, found, allowed):
    """Outputs and gradients computed in f64, where PyTorch's own are not close to those."""
    if dtype not in ("f32", "f16", "bf16"):
        return None
    def widen(x):
        if x.dtype != DTYPES[dtype]:
            return x
        return x.detach().to(torch.float64).requires_grad_(x.requires_grad)
    outputs, dy, leaves, gradients = found
    if len({id(leaf) for leaf in leaves}) < len(leaves):
        return None
    wide = type(sample)(
        mapped(sample.input, widen), args=mapped(sample.args, widen), kwargs=mapped(sample.kwargs, widen)
    )
    try:
        seeds = [y.double() for y in dy if y is not None]
        truth = evaluate(op, wide, seeds)
    except Exception:  # Some operations have no form in f64.
        return None
    if len(truth[0]) != len(outputs) or len(truth[3]) != len(gradients):
        return None
    pairs = list(zip([*outputs, *gradients], [*truth[0], *truth[3]]))
    if not any(differs(a, b, *allowed) for a, b in pairs):
        return None
    return truth[0], truth[3]


def write_sample(writer, op, head, sample, dtype):
    rtol, atol, source = tolerance(op, dtype)
    case = head | {"rtol": rtol, "atol": atol}
    if source:
        case["tolerance_from"] = source
    seed = zlib.crc32(json.dumps(head).encode())
    # Before the operation runs: some write their inputs.
    case["arguments"] = writer.value([sample.input, *sample.args])
    case["options"] = {key: writer.value(item) for key, item in sample.kwargs.items()}
    everything = operands([sample.input, *sample.args], sample.kwargs)
    case["wants_gradient"] = [index for index, x in enumerate(everything) if x.requires_grad]
    try:
        found = evaluate(op, sample, seed=seed)
    except Exception as error:
        # Mostly `backward is not implemented for this type`.
        writer.case(case | {"unusable": f"{type(error).__name__}: {error}".splitlines()[0][:160]})
        return
    outputs, dy, leaves, gradients = found
    of_leaf = {id(leaf): gradient for leaf, gradient in zip(leaves, gradients)}
    gradients = [of_leaf[id(x)] for x in everything if x.requires_grad]
    case["outputs"] = [writer.value(y) for y in outputs]
    case["cotangents"] = [writer.value(y) for y in dy]
    case["gradients"] = [writer.value(x) for x in gradients]
    truth = truth_of(op, sample, dtype, found, (rtol, atol))
    if truth:
        case["truth"] = {
            "outputs": [writer.value(y) for y in truth[0]],
            "gradients": [writer.value(x) for x in truth[1]],
        }
    writer.case(case)


def seed_all(text):
    seed = zlib.crc32(f"{SEED} {text}".encode())
    torch.manual_seed(seed)
    random.seed(seed)
    numpy.random.seed(seed)


def size_of(arguments):
    return sum(x.numel() * x.element_size() for x in tensors_in(arguments))


def size_bytes(sample):
    """Of the operands; numbers count as the sizes that they may be."""
    arguments = [sample.input, *sample.args]
    numbers = [abs(x) for x in flat(arguments) if isinstance(x, (int, float))]
    return size_of((arguments, sample.kwargs)) + sum(numbers)


def chosen(cases, count):
    """All cases with their numbers, or `count` small ones by chance."""
    cases = list(enumerate(cases))
    if count is None:
        return cases
    size = lambda case: size_bytes(getattr(case[1], "sample_input", case[1]))
    small = [case for case in cases if 0 < size(case) <= 144]
    small = small or [case for case in cases if size(case) <= 144]
    return sorted(random.sample(small, min(count, len(small))), key=lambda case: case[0])


def write_op(writer, op, counts):
    """`counts` says how many cases of each kind are wanted; None is all."""
    name = full_name(op)
    for dtype, torch_dtype in DTYPES.items():
        if not op.supports_dtype(torch_dtype, "cpu"):
            continue
        backward = op.supports_autograd and torch_dtype in op.supported_backward_dtypes("cpu")
        seed_all(f"{name} {dtype}")
        samples = op.sample_inputs("cpu", torch_dtype, requires_grad=backward)
        for index, sample in chosen(samples, counts.get(dtype)):
            head = {"op": name, "kind": "sample", "dtype": dtype, "index": index}
            write_sample(writer, op, head, sample, dtype)
            if dtype == "f32" and counts.get(dtype) is None:
                # The same values, with every operand as a view that is not contiguous.
                strided = sample.noncontiguous()
                write_sample(writer, op, head | {"kind": "strided"}, strided, dtype)
    seed_all(f"{name} errors")
    if op.error_inputs_func is not None:
        for index, error in chosen(op.error_inputs("cpu"), counts.get("error")):
            sample = error.sample_input
            first = sample.input if isinstance(sample.input, torch.Tensor) else None
            dtype = NAMES.get(first.dtype, "f32") if first is not None else "f32"
            writer.case({
                "op": name, "kind": "error", "dtype": dtype, "index": index,
                "arguments": writer.value([sample.input, *sample.args]),
                "options": {key: writer.value(item) for key, item in sample.kwargs.items()},
                "raises": [error.error_type.__name__ if isinstance(error.error_type, type)
                           else str(error.error_type), str(error.error_regex)[:200]],
            })


def count(op):
    """Samples in f32, without values."""
    if not op.supports_dtype(torch.float32, "cpu"):
        return 0
    return sum(1 for _ in op.sample_inputs("cpu", torch.float32, requires_grad=False))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--ops", nargs="*")
    parser.add_argument("--sample", action="store_true")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    by_name = {full_name(op): op for op in op_db}
    unknown = [name for name in options.ops or () if name not in by_name]
    if unknown:
        sys.exit(f"PyTorch {torch.__version__} has no OpInfo for {', '.join(unknown)}")
    options.out.mkdir(parents=True, exist_ok=True)
    writer = Writer(options.out, "sample") if options.sample else None
    for name in options.ops or by_name:
        of_op = writer or Writer(options.out, name)
        try:
            sample = SAMPLE | (NETWORK if name.startswith("nn.") else {})
            write_op(of_op, by_name[name], sample if options.sample else {})
        except Exception as error:
            sys.exit(f"{name}: {type(error).__name__}: {error}")
        if not writer:
            of_op.close()
    if writer:
        writer.close()
    if not options.sample:
        seed_all("inventory")
        counts = "".join(f"{name} {count(op)}\n" for name, op in by_name.items())
        (options.out / "inventory.txt").write_text(counts)
    versions = f"PyTorch {torch.__version__}, NumPy {numpy.__version__}, {platform.machine()}"
    (options.out / "versions.txt").write_text(f"{versions}, seed {SEED}\n")


if __name__ == "__main__":
    main()
