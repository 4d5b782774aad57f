"""Writes PyTorch's ModuleInfo inputs as cases: constructor arguments, parameters and buffers, inputs,
results, and the gradients of inputs and parameters for a seeded cotangent.

    python moduleinfo.py OUT [--ops NAME ...] [--sample]

The files are those of `opinfo.py`. A case's options are the arguments of the constructor by their
names, and those of `forward` that have one; `state` holds parameters and buffers before the call, and
the results end in the buffers after it.
"""

import copy
import inspect
import pathlib
import sys
import warnings

sys.dont_write_bytecode = True  # Not beside the sources.
import opinfo  # First: it chooses the instructions.
import torch
from opinfo import DTYPES, TOLERANCES, Writer, flat, mapped, seed_all, tensors_in
from torch.testing._internal.common_modules import module_db

# Samples beside a sample, which tell how far PyTorch's roundings reach.
NEIGHBOURS = 8
# Of what makes a difference: below that, no neighbour is looked at.
NEARLY = 0.25

RECURRENT = ["input_size", "hidden_size", "num_layers", "bias", "batch_first", "dropout", "bidirectional"]


def named_arguments(cls, given):
    """The arguments of a constructor by their names; those of a layer in place of the layer."""
    if issubclass(cls, torch.nn.RNNBase):
        return dict(zip(RECURRENT, given.args)) | given.kwargs
    bound = inspect.signature(cls.__init__).bind(None, *given.args, **given.kwargs).arguments
    bound.pop("self", None)
    if layer := bound.pop("encoder_layer", None):
        bound |= {
            "d_model": layer.self_attn.embed_dim,
            "nhead": layer.self_attn.num_heads,
            "dim_feedforward": layer.linear1.out_features,
            "dropout": layer.dropout.p,
            "activation": "gelu" if layer.activation is torch.nn.functional.gelu else "relu",
            "layer_norm_eps": layer.norm1.eps,
            "batch_first": layer.self_attn.batch_first,
            "norm_first": layer.norm_first,
            "bias": layer.linear1.bias is not None,
        }
    return bound | bound.pop("kwargs", {})


def is_norm(module):
    return isinstance(module, torch.nn.modules.batchnorm._NormBase)


def state_of(module):
    """Parameters and buffers; the weights of losses are arguments of their constructors."""
    buffers = dict(module.named_buffers()) if is_norm(module) else {}
    return dict(module.named_parameters()) | buffers


def statistics_of(module):
    """The buffers that a call changes."""
    return [buffer.clone() for buffer in module.buffers()] if is_norm(module) else []


def run(module, given, seeds, seed):
    """Results, cotangents, leaves, and their gradients."""
    inputs = [x for x in tensors_in((given.args, given.kwargs)) if x.requires_grad]
    leaves = inputs + list(module.parameters()) if module.training else []
    outputs = [y for y in flat(module(*given.args, **given.kwargs)) if y is not None]
    with_gradient = [y for y in outputs if y.requires_grad] if leaves else []
    if not with_gradient:
        return outputs, [None] * len(outputs), leaves, [None] * len(leaves)
    dy = seeds or opinfo.cotangents(with_gradient, seed)
    gradients = torch.autograd.grad(with_gradient, leaves, dy, allow_unused=True)
    remaining = iter(dy)
    return outputs, [next(remaining) if y.requires_grad else None for y in outputs], leaves, gradients


def widened(value, dtype):
    def widen(x):
        if x.dtype != DTYPES[dtype]:
            return x
        return x.detach().to(torch.float64).requires_grad_(x.requires_grad)
    return mapped(value, widen)


def moved(value, dtype, generator):
    """Every element of the type as it is, or the number before or after it."""
    def move(x):
        if x.dtype != DTYPES[dtype]:
            return x
        side = torch.randint(-1, 2, x.shape, generator=generator)
        end = torch.where(side > 0, torch.inf, -torch.inf).to(x.dtype)
        there = torch.nextafter(x.detach(), end)
        stays = (side == 0) | (x == 0) | ~torch.isfinite(there)
        return torch.where(stays, x.detach(), there).requires_grad_(x.requires_grad)
    return mapped(value, move)


def distances(found, truth):
    """How far results are from those in f64, rounded to the type, each at its worst element."""
    def distance(x, y):
        are_tensors = isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor)
        if not are_tensors or not x.is_floating_point():
            return 0.0
        far = (x.double() - y.to(x.dtype).double()).abs()
        return far[far.isfinite()].max().item() if far.isfinite().any() else 0.0
    return [distance(x, y) for x, y in zip(found, truth)]


def distances_nearby(module, given, dtype, cotangents, seed):
    """The worst `distances` of results and gradients, in the order of `run`, of `NEIGHBOURS`
    samples whose inputs, parameters and cotangents are these or a unit of their last place away."""
    generator, worst = torch.Generator().manual_seed(seed), None
    for _ in range(NEIGHBOURS):
        near = copy.deepcopy(module)
        with torch.no_grad():
            for parameter in near.parameters():
                parameter.copy_(moved(parameter, dtype, generator))
        wide = copy.deepcopy(near).double()
        inputs = moved((given.args, given.kwargs), dtype, generator)
        inputs = type(given)(*inputs[0], **inputs[1])
        wide_inputs = type(given)(*widened(inputs.args, dtype), **widened(inputs.kwargs, dtype))
        dy = moved(cotangents, dtype, generator)
        outputs, _, _, gradients = run(near, inputs, dy, 0)
        truth, _, _, wide_gradients = run(wide, wide_inputs, [y.double() for y in dy], 0)
        buffers = [statistics_of(x) if x.training else [] for x in (near, wide)]
        found = (distances([*outputs, *buffers[0]], [*truth, *buffers[1]]),
                 distances(gradients, wide_gradients))
        worst = found if worst is None else [list(map(max, a, b)) for a, b in zip(worst, found)]
    return worst


def write_case(writer, head, module, constructor, given, dtype):
    (rtol, atol), training = TOLERANCES[dtype], module.training
    fresh = copy.deepcopy(module)
    state = state_of(module)
    options = constructor | given.kwargs
    case = head | {"rtol": rtol, "atol": atol, "training": training}
    case["arguments"] = writer.value(list(given.args))
    case["options"] = {key: writer.value(value) for key, value in options.items()}
    case["state"] = {key: writer.value(value) for key, value in state.items()}
    everything = opinfo.operands(list(given.args), options, state)
    seed = opinfo.zlib.crc32(opinfo.json.dumps(head).encode())
    try:
        outputs, dy, leaves, gradients = run(module, given, None, seed)
    except Exception as error:
        writer.case(case | {"unusable": f"{type(error).__name__}: {error}".splitlines()[0][:160]})
        return
    found = {id(leaf): gradient for leaf, gradient in zip(leaves, gradients)}
    case["wants_gradient"] = [i for i, x in enumerate(everything) if id(x) in found]
    gradients = [found[id(everything[i])] for i in case["wants_gradient"]]
    buffers = statistics_of(module) if training else []
    case["outputs"] = [writer.value(y) for y in outputs + buffers]
    case["cotangents"] = [writer.value(y) for y in dy]
    case["gradients"] = [writer.value(x) for x in gradients]
    results = (outputs, dy, leaves, found)
    if truth := truth_of(fresh, given, dtype, results, (everything, case, buffers)):
        is_close, outputs, gradients = truth
        case["truth"] = {
            "is_close": is_close,
            "outputs": [writer.value(y) for y in outputs],
            "gradients": [writer.value(x) for x in gradients],
        }
        try:
            seeds = [y for y in dy if y is not None]
            nearby, of_leaves = distances_nearby(fresh, given, dtype, seeds, seed)
        except Exception:  # An operand that has left the function's domain.
            pass
        else:
            of_leaf = {id(leaf): distance for leaf, distance in zip(leaves, of_leaves)}
            nearby += [of_leaf[id(everything[i])] for i in case["wants_gradient"]]
            case["truth"]["nearby"] = nearby
    writer.case(case)


def truth_of(fresh, given, dtype, results, written):
    """Whether PyTorch's results and gradients are close to those in f64, and those, unless they are
    nearly the same."""
    (outputs, dy, leaves, found), (everything, case, buffers) = results, written
    if dtype == "f64" or len({id(leaf) for leaf in leaves}) < len(leaves):
        return None
    wide = copy.deepcopy(fresh).double()
    given = type(given)(*widened(given.args, dtype), **widened(given.kwargs, dtype))
    try:
        seeds = [y.double() for y in dy if y is not None]
        truth, _, wide_leaves, wide_gradients = run(wide, given, seeds, 0)
    except Exception:
        return None
    if len(truth) != len(outputs) or len(wide_leaves) != len(leaves):
        return None
    of_leaf = {id(leaf): wide for leaf, wide in zip(leaves, wide_gradients)}
    gradients = [of_leaf[id(everything[i])] for i in case["wants_gradient"]]
    own = [found[id(everything[i])] for i in case["wants_gradient"]]
    truth = truth + (statistics_of(wide) if case["training"] else [])
    pairs = list(zip([*outputs, *buffers, *own], [*truth, *gradients]))
    rtol, atol = TOLERANCES[dtype]
    differs = lambda share: any(opinfo.differs(a, b, rtol * share, atol * share) for a, b in pairs)
    return (not differs(1), truth, gradients) if differs(NEARLY) else None


def write_module(writer, info, is_sample):
    for dtype in ("f32",) if is_sample else ("f64", "f32", "bf16"):
        if DTYPES[dtype] not in info.dtypes and dtype != "bf16":
            continue
        for training in (True, False):
            seed_all(f"{info.name} {dtype} {training}")
            inputs = info.module_inputs_func(
                info, device="cpu", dtype=DTYPES[dtype], requires_grad=training, training=training
            )
            inputs = list(enumerate(inputs))
            if is_sample:
                size = lambda given: opinfo.size_of(given.forward_input.args)
                small = [case for case in inputs if training and size(case[1]) <= 300]
                inputs = small[:1]
            for index, given in inputs:
                made = given.constructor_input
                torch.manual_seed(index)
                module = info.module_cls(*made.args, **made.kwargs).to(DTYPES[dtype]).train(training)
                head = {"op": info.name, "kind": "sample", "dtype": dtype,
                        "index": 2 * index + (not training)}
                constructor = named_arguments(info.module_cls, made)
                write_case(writer, head, module, constructor, given.forward_input, dtype)
    if info.module_error_inputs_func is not None and not is_sample:
        write_errors(writer, info)


def write_errors(writer, info):
    seed_all(f"{info.name} errors")
    errors = info.module_error_inputs_func(
        info, device="cpu", dtype=torch.float32, requires_grad=False, training=True
    )
    for index, error in enumerate(errors):
        given = error.module_error_input
        made, forward = given.constructor_input, given.forward_input
        try:
            state = state_of(info.module_cls(*made.args, **made.kwargs))
        except Exception:  # The error is the constructor's.
            state = {}
        arguments, options = list(forward.args) if forward else [], forward.kwargs if forward else {}
        options = named_arguments(info.module_cls, made) | options
        writer.case({
            "op": info.name, "kind": "error", "dtype": "f32", "index": index, "training": True,
            "arguments": writer.value(arguments),
            "options": {key: writer.value(value) for key, value in options.items()},
            "state": {key: writer.value(value) for key, value in state.items()},
            "raises": [str(getattr(error.error_type, "__name__", error.error_type)),
                       str(error.error_regex)[:200]],
        })


def main():
    parser = opinfo.argparse.ArgumentParser()
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--ops", nargs="*")
    parser.add_argument("--sample", action="store_true")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    by_name = {info.name: info for info in module_db}
    options.out.mkdir(parents=True, exist_ok=True)
    shared = Writer(options.out, "sample") if options.sample else None
    for name in options.ops or by_name:
        writer = shared or Writer(options.out, name)
        try:
            write_module(writer, by_name[name], options.sample)
        except Exception as error:
            sys.exit(f"{name}: {type(error).__name__}: {error}")
        if not shared:
            writer.close()
    if shared:
        shared.close()
    versions = f"PyTorch {torch.__version__}, seed {opinfo.SEED}"
    (options.out / "versions.txt").write_text(versions + "\n")
    if options.sample:
        return
    inventory = ""
    for name, info in by_name.items():
        seed_all("inventory")
        inputs = info.module_inputs_func(
            info, device="cpu", dtype=torch.float32, requires_grad=False, training=True
        )
        inventory += f"{name} {len(list(inputs))}\n"
    (options.out / "inventory.txt").write_text(inventory)


if __name__ == "__main__":
    main()
