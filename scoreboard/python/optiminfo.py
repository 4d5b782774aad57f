"""Writes PyTorch's OptimizerInfo inputs as cases: parameters, five gradients of each, options, and the
parameters and states after five steps.

    python optiminfo.py OUT [--ops NAME ...]

The files are those of `opinfo.py`. A case's `state` holds the parameters before, its arguments the
gradients of each step in turn, and its results the parameters, then the states by name, as
`PARAMETER.STATE`.
"""

import pathlib
import sys
import warnings

sys.dont_write_bytecode = True  # Not beside the sources.
import opinfo  # First: it chooses the instructions.
import torch
from opinfo import DTYPES, TOLERANCES, Writer, seed_all
from torch.optim import _muon
from torch.testing._internal.common_optimizers import OptimizerErrorEnum, optim_db

STEPS = 5
# Muon takes matrices only.
SHAPES = {"a": (4, 3), "b": (3, 5), "c": (2, 3, 4), "d": (6,), "e": ()}


def newton_schulz(x, coefficients, steps, eps):
    """The iteration in the type of x, as in lowtide; torch.optim.Muon rounds it to bfloat16."""
    a, b, c = coefficients
    y = x.T if x.size(0) > x.size(1) else x
    y = y / y.norm().clamp(min=eps)
    for _ in range(steps):
        gram = y @ y.T
        y = a * y + (b * gram + c * gram @ gram) @ y
    return y.T if x.size(0) > x.size(1) else y


_muon._zeropower_via_newtonschulz = newton_schulz


def write_optimizer(writer, info):
    name = info.optim_cls.__name__
    shapes = {k: v for k, v in SHAPES.items() if name != "Muon" or len(v) == 2}
    for dtype in ("f64", "f32"):
        seed_all(f"{name} {dtype}")
        for index, given in enumerate(info.optim_inputs_func(device="cpu")):
            make = lambda shape: torch.rand(shape, dtype=DTYPES[dtype]) * 2 - 1
            parameters = {key: torch.nn.Parameter(make(shape)) for key, shape in shapes.items()}
            gradients = [[make(shape) for shape in shapes.values()] for _ in range(STEPS)]
            rtol, atol = TOLERANCES[dtype]
            case = {"op": f"optim.{name}", "kind": "sample", "dtype": dtype, "index": index,
                    "rtol": rtol, "atol": atol, "arguments": writer.value(gradients),
                    "options": {key: writer.value(value) for key, value in given.kwargs.items()},
                    "state": {key: writer.value(value) for key, value in parameters.items()}}
            optimizer = info.optim_cls(list(parameters.values()), **given.kwargs)
            for step in gradients:
                for parameter, gradient in zip(parameters.values(), step):
                    parameter.grad = gradient.clone()
                optimizer.step()
            states = {
                f"{key}.{state}": value
                for key, parameter in parameters.items()
                for state, value in optimizer.state[parameter].items()
                # Counts: lowtide has one for all parameters, and the product follows from it.
                if state not in ("step", "mu_product") and isinstance(value, torch.Tensor)
            }
            results = [x.detach().clone() for x in parameters.values()]
            results += [states[key] for key in sorted(states)]
            writer.case(case | {"outputs": [writer.value(x) for x in results]})
    errors = info.optim_error_inputs_func("cpu", torch.float32)
    for index, error in enumerate(errors):
        given = error.optimizer_error_input
        at = "step" if error.error_on == OptimizerErrorEnum.STEP_ERROR else "construction"
        kind = getattr(error.error_type, "__name__", error.error_type)
        writer.case({"op": f"optim.{name}", "kind": "error", "dtype": "f32", "index": index,
                     "options": {key: writer.value(value) for key, value in given.kwargs.items()},
                     "raises": [f"{kind} at {at}", str(error.error_regex)[:200]]})


def main():
    parser = opinfo.argparse.ArgumentParser()
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--ops", nargs="*")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    by_name = {f"optim.{info.optim_cls.__name__}": info for info in optim_db}
    options.out.mkdir(parents=True, exist_ok=True)
    for name in options.ops or by_name:
        writer = Writer(options.out, name)
        write_optimizer(writer, by_name[name])
        writer.close()
    (options.out / "versions.txt").write_text(f"PyTorch {torch.__version__}, seed {opinfo.SEED}\n")
    inventory = [f"{name} {len(info.optim_inputs_func(device='cpu'))}" for name, info in by_name.items()]
    (options.out / "inventory.txt").write_text("\n".join(inventory) + "\n")


if __name__ == "__main__":
    main()
