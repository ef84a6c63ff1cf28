#!/usr/bin/env python3
"""Checks files against the Python package `gguf`, llama.cpp's own reader and writer. Run by gguf_peer_test.cpp.

  check_with_gguf.py read FILE    compares metadata and tensors with what gguf_peer_test.cpp writes
  check_with_gguf.py write FILE   writes such a file for the C++ reader
  check_with_gguf.py model FILE   every tensor's name and shape is one of the architecture's, every number is finite

A tensor NAME.f32 holds the numbers that the blocks of the tensor NAME stand for.
Exit status: 0 right, 1 wrong, 77 the packages gguf and numpy are not installed.
"""
import sys

try:
    import gguf
    import numpy
except ImportError as error:
    print(f"not installed: {error}")
    sys.exit(77)

FIELDS = {"test.u32": 4000000000, "test.f32": -0.375, "test.bool": True, "test.string": "sn\u00f6 \u4f60",
          "test.strings": ["a", "", "\u00e9"], "test.i32s": [-1, 0, 2147483647]}
ARRAYS = ("test.strings", "test.i32s")
WRITTEN = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q5_0")  # what the package can make


def contents(field):
    value = field.contents()
    return [v.item() if hasattr(v, "item") else v for v in value] if isinstance(value, list) else value


def numbers(tensor):
    return gguf.dequantize(tensor.data, tensor.tensor_type).astype(numpy.float32)


def read(path):
    reader = gguf.GGUFReader(path)
    for key, want in FIELDS.items():
        got = contents(reader.get_field(key))
        assert got == want, (key, got, want)
    tensors = {t.name: t for t in reader.tensors}
    assert len(tensors) == 18, sorted(tensors)
    for name, tensor in tensors.items():
        if name.endswith(".f32"):
            continue
        assert tensor.tensor_type.name.lower() == name, (name, tensor.tensor_type)
        assert tensor.shape.tolist() == [512, 3], (name, tensor.shape)  # the format's order: rows last
        got, want = numbers(tensor), numbers(tensors[name + ".f32"])
        # The package rounds once more or less where a block has several scales.
        limit = 4 * 2.0**-24 * numpy.abs(want).max()
        assert numpy.abs(got - want).max() <= limit, (name, numpy.abs(got - want).max(), limit)
    print(f"{len(tensors)} tensors are right")


def write(path):
    writer = gguf.GGUFWriter(path, "deepseek")
    writer.add_uint32("test.u32", FIELDS["test.u32"])
    writer.add_float32("test.f32", FIELDS["test.f32"])
    writer.add_bool("test.bool", FIELDS["test.bool"])
    writer.add_string("test.string", FIELDS["test.string"])
    for key in ARRAYS:
        writer.add_array(key, FIELDS[key])
    values = numpy.random.default_rng(1).standard_normal((3, 512)).astype(numpy.float32)
    writer.add_tensor("source", values)
    for name in WRITTEN:
        kind = gguf.GGMLQuantizationType[name]
        blocks = gguf.quantize(values, kind)
        writer.add_tensor(name.lower(), blocks, raw_dtype=kind)
        writer.add_tensor(name.lower() + ".f32", gguf.dequantize(blocks, kind).astype(numpy.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def model(path):
    reader = gguf.GGUFReader(path)
    name = contents(reader.get_field(gguf.Keys.General.ARCHITECTURE))
    architecture = next(a for a, n in gguf.MODEL_ARCH_NAMES.items() if n == name)
    layers = contents(reader.get_field(name + ".block_count"))
    known = {gguf.TENSOR_NAMES[kind].format(bid=layer) for kind in gguf.MODEL_TENSORS[architecture] for layer in range(layers)}
    for tensor in reader.tensors:
        base, _, suffix = tensor.name.rpartition(".")
        assert base in known and suffix in ("weight", "bias"), tensor.name
        assert numpy.isfinite(numbers(tensor)).all(), tensor.name
    experts = next(t for t in reader.tensors if t.name.endswith("ffn_gate_exps.weight"))
    want = [contents(reader.get_field(f"{name}.{key}")) for key in
            ("embedding_length", "expert_feed_forward_length", "expert_count")]
    assert experts.shape.tolist() == want, (experts.shape, want)
    print(f"{len(reader.tensors)} tensors are those of a model")


if __name__ == "__main__":
    {"read": read, "write": write, "model": model}[sys.argv[1]](sys.argv[2])
