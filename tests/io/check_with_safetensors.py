#!/usr/bin/env python3
"""Checks files against the Python package `safetensors`. Run by compatibility_test.cpp.

  check_with_safetensors.py read FOLDER   compares every tensor of a sharded model with what it must contain
  check_with_safetensors.py write FILE    writes a file for the C++ reader

Exit status: 0 right, 1 wrong, 77 the packages safetensors and numpy are not installed.
Byte i of every tensor is (7 * i + the length of its name) mod 251; the C++ side has the same rule.
"""
import json
import os
import sys

try:
    import numpy
    import safetensors
    import safetensors.numpy
except ImportError as error:
    print(f"not installed: {error}")
    sys.exit(77)

WRITTEN = [("f32", "float32", (2, 3)), ("half", "float16", (5,)), ("int32", "int32", (1, 2, 3)),
           ("integer64", "int64", ()), ("bytes", "uint8", (3,)), ("nothing", "float32", (0, 4)),
           ("double64", "float64", (2,))]


def pattern(name, count):
    return bytes((7 * i + len(name)) % 251 for i in range(count))


def read(folder):
    with open(os.path.join(folder, "model.safetensors.index.json"), encoding="utf-8") as file:
        index = json.load(file)
    seen = 0
    for file_name in sorted(set(index["weight_map"].values())):
        with open(os.path.join(folder, file_name), "rb") as file:
            content = file.read()
        with safetensors.safe_open(os.path.join(folder, file_name), framework="numpy") as opened:
            assert opened.metadata() == {"format": "pt"}, opened.metadata()
        for name, tensor in safetensors.deserialize(content):
            assert index["weight_map"][name] == file_name, name
            dtype, *shape = name.split("_")  # the name of a tensor says what it is: "BF16_2_3"
            assert tensor["dtype"] == dtype, (name, tensor["dtype"])
            assert tensor["shape"] == [int(n) for n in shape], (name, tensor["shape"])
            assert bytes(tensor["data"]) == pattern(name, len(tensor["data"])), name
            seen += len(tensor["data"])
    assert seen == index["metadata"]["total_size"], seen
    print(f"{len(index['weight_map'])} tensors are right")


def write(path):
    tensors = {}
    for name, dtype, shape in WRITTEN:
        size = numpy.dtype(dtype).itemsize * int(numpy.prod(shape, dtype=int))
        tensors[name] = numpy.frombuffer(pattern(name, size), dtype=dtype).reshape(shape)
    safetensors.numpy.save_file(tensors, path, metadata={"made by": "python"})


if __name__ == "__main__":
    {"read": read, "write": write}[sys.argv[1]](sys.argv[2])
