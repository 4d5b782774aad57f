"""Writes the node tests of ONNX as cases: graphs of one or several nodes, their inputs, and the
outputs that are expected.

    python onnx_nodes.py OUT [--ops NAME ...] [--sample]

The files are those of `opinfo.py`. A case's `arguments` are the inputs of its `graph` in order, the
tensors of constants and attributes follow as the option `constants`. What lowtide has no type for
is `{"foreign": "uint16"}`. A node test that ONNX also has as the function's own graph of simpler
nodes is there twice; the second is of the kind `function`. With `--sample`, a few small cases of
each operator go to `sample.jsonl`. The same ONNX writes the same bytes.
"""

import argparse
import json
import math
import pathlib
import random
import sys
import warnings
import zlib

sys.dont_write_bytecode = True  # Not beside the sources.
import numpy
import onnx
from onnx import AttributeProto, TensorProto, numpy_helper
from onnx.backend.test.case.node import collect_testcases

SEED = 28
# The types that lowtide has, by NumPy's names.
NAMES = {
    "float64": "f64",
    "float32": "f32",
    "float16": "f16",
    "bfloat16": "bf16",
    "int64": "i64",
    "int32": "i32",
    "uint8": "u8",
    "bool": "bool",
}
FLOATS = ("f64", "f32", "f16", "bf16")
# Of `onnx.backend.test.runner`: two units in the last place of a bf16.
BF16_RTOL = 2.0**-6
# Bytes of the elements and of the line of a case of the sample.
SAMPLE_BYTES, SAMPLE_LINE = 1000, 4000


class Writer:
    """One operator's files."""

    def __init__(self, folder, name):
        self.lines = open(folder / f"{name}.jsonl", "w")
        self.bytes = open(folder / f"{name}.bin", "wb")
        self.at = 0

    def case(self, line, data):
        for tensor in line["tensors"]:
            tensor["at"] += self.at
        self.lines.write(json.dumps(line, separators=(",", ":")) + "\n")
        self.bytes.write(data)
        self.at += len(data)

    def close(self):
        self.lines.close()
        self.bytes.close()


class Case:
    """A line and its bytes."""

    def __init__(self):
        self.tensors, self.data = [], b""

    def array(self, array):
        name = NAMES.get(array.dtype.name)
        if name is None:
            return {"foreign": "string" if array.dtype == object else array.dtype.name}
        # Counted from the case's first byte until it is written.
        self.tensors.append(
            {"dtype": name, "shape": list(array.shape), "at": len(self.data), "len": array.size}
        )
        self.data += numpy.ascontiguousarray(array).tobytes()
        return {"tensor": len(self.tensors) - 1}

    def proto(self, tensor):
        kind = TensorProto.DataType.Name(tensor.data_type).lower()
        kind = {"float": "float32", "double": "float64"}.get(kind, kind)
        if kind not in NAMES:
            return {"foreign": kind}
        return self.array(numpy_helper.to_array(tensor))

    def type_of(self, value):
        if value is None or "foreign" in value:
            return str((value or {}).get("foreign"))
        return self.tensors[value["tensor"]]["dtype"]

    def data_of(self, value, declared):
        """An input or output."""
        if value is None:
            return None
        if isinstance(value, TensorProto):
            return self.proto(value)
        if isinstance(value, (list, tuple)) or not declared.type.HasField("tensor_type"):
            return {"foreign": declared.type.WhichOneof("value").removesuffix("_type")}
        return self.array(numpy.asarray(value))

    def attribute(self, attribute, constants):
        value = onnx.helper.get_attribute_value(attribute)
        if attribute.type == AttributeProto.TENSOR:
            tensor = self.proto(value)
            if "tensor" in tensor:
                constants.append(tensor)
            return tensor
        if attribute.type in (AttributeProto.GRAPH, AttributeProto.GRAPHS):
            return {"foreign": "graph"}
        if attribute.type == AttributeProto.STRINGS:
            return [item.decode() for item in value]
        if isinstance(value, bytes):
            return value.decode()
        if attribute.type == AttributeProto.FLOATS:
            return [number(item) for item in value]
        if attribute.type == AttributeProto.FLOAT:
            return number(value)
        if attribute.type in (AttributeProto.INT, AttributeProto.INTS):
            return value if isinstance(value, int) else list(value)
        return {"foreign": AttributeProto.AttributeType.Name(attribute.type).lower()}


def number(value):
    return value if math.isfinite(value) else {"float": str(value)}


def line_of(test, operator, index):
    """The line of a test, and the bytes of its tensors."""
    graph, (inputs, outputs) = test.model.graph, test.data_sets[0]
    case, constants = Case(), []
    if len(inputs) != len(graph.input) or len(outputs) != len(graph.output):
        sys.exit(f"{test.name}: {len(inputs)} inputs and {len(outputs)} outputs")
    arguments = [case.data_of(*pair) for pair in zip(inputs, graph.input)]
    nodes = []
    for tensor in graph.initializer:
        value = case.proto(tensor)
        constants += [value] if "tensor" in value else []
        nodes.append(node_of("Constant", [], [tensor.name], {"value": value}))
    for node in graph.node:
        attributes = {x.name: case.attribute(x, constants) for x in node.attribute}
        nodes.append(node_of(operator_of(node), node.input, node.output, attributes))
    shorten(nodes)
    expected = [case.data_of(*pair) for pair in zip(outputs, graph.output)]
    types = [case.type_of(value) for value in expected]
    dtype = next((name for name in types if name in FLOATS), types[0])
    opset = [x.version for x in test.model.opset_import if x.domain in ("", "ai.onnx")]
    rtol = max(test.rtol, BF16_RTOL) if dtype == "bf16" else test.rtol
    line = {
        "op": f"onnx.{operator}",
        "name": test.name,
        "kind": "function" if is_function(test) else "sample",
        "dtype": dtype,
        "index": index,
        "rtol": rtol,
        "atol": test.atol,
        "arguments": arguments,
        "options": {"constants": constants} if constants else {},
        "graph": {
            # Of graphs with nodes of another domain only, there is none.
            "opset": opset[0] if opset else 0,
            "inputs": [x.name for x in graph.input],
            "outputs": [x.name for x in graph.output],
            "nodes": nodes,
        },
        "outputs": expected,
        "tensors": case.tensors,
    }
    is_wanted = lambda key, value: value not in ([], {}, 0) or key == "tensors"
    return {key: value for key, value in line.items() if is_wanted(key, value)}, case.data


def node_of(op, inputs, outputs, attributes):
    return {"op": op, "inputs": [*inputs], "outputs": [*outputs], "attributes": attributes}


def operator_of(node):
    return f"{node.domain}.{node.op_type}" if node.domain else node.op_type


def shorten(nodes):
    """Leaves out the test's name that begins the names in a function's graph."""
    names = {name for node in nodes for name in node["inputs"] + node["outputs"]}
    short = {name: name.rsplit("_function_", 1)[-1] for name in names}
    if len(set(short.values())) < len(names):
        return
    for node in nodes:
        for key in ("inputs", "outputs"):
            node[key] = [short[name] for name in node[key]]


def is_function(test):
    return "_expanded" in test.name


def grouped(tests):
    """Tests by operator, in the order of the suite; a function's graph belongs to the function."""
    operators, groups = {}, {}
    for test in tests:
        if not is_function(test):
            operators[test.name] = operator_of(test.model.graph.node[0])
    for test in tests:
        base = test.name.split("_expanded")[0]
        groups.setdefault(operators[base], []).append(test)
    return groups


def chosen(group):
    """A small test of the operator, and one of it as a function, by chance."""
    random.seed(zlib.crc32(f"{SEED} {group[0][0]['op']}".encode()))
    is_small = lambda item: len(item[1]) <= SAMPLE_BYTES and len(json.dumps(item[0])) <= SAMPLE_LINE
    picks = []
    for kind in ("sample", "function"):
        small = [item for item in group if item[0]["kind"] == kind and is_small(item)]
        picks += [random.choice(small)] if small else []
    return picks


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--ops", nargs="*")
    parser.add_argument("--sample", action="store_true")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    options.out.mkdir(parents=True, exist_ok=True)
    groups = grouped(collect_testcases(None))
    shared = Writer(options.out, "sample") if options.sample else None
    inventory = ""
    for operator, tests in sorted(groups.items()):
        name = f"onnx.{operator}"
        inventory += f"{name} {len(tests)}\n"
        if options.ops and name not in options.ops:
            continue
        group = [line_of(test, operator, index) for index, test in enumerate(tests)]
        writer = shared or Writer(options.out, name)
        for line, data in chosen(group) if shared else group:
            writer.case(line, data)
        if not shared:
            writer.close()
    if shared:
        shared.close()
    else:
        (options.out / "inventory.txt").write_text(inventory)
    versions = f"ONNX {onnx.__version__}, NumPy {numpy.__version__}, seed {SEED}\n"
    (options.out / "versions.txt").write_text(versions)


if __name__ == "__main__":
    main()
