"""What every golden-file script shares: a safetensors writer and reader, seeded draws, write-or-compare.

Numbers are computed in float64 from float32-representable inputs and stored as F32, so a stored
value is the exact answer rounded once. The bf16 cases have bf16-representable inputs, stored as BF16,
and answers of a bfloat16 run beside the exact ones. Needs Python 3 and numpy alone.
"""
import json
import pathlib
import struct
import sys

import numpy as np

DTYPES = {"F32": np.dtype("<f4"), "I32": np.dtype("<i4")}


def to_bf16(values):
    """Rounded to the nearest bfloat16, ties to even, as float64."""
    bits = np.asarray(values, "<f4").view("<u4")
    bits = bits + 0x7FFF + ((bits >> 16) & 1) & 0xFFFF0000
    return bits.astype("<u4").view("<f4").astype(np.float64)


def bf16_bytes(values):
    bits = np.ascontiguousarray(values, "<f4").view("<u4")
    assert not (bits & 0xFFFF).any(), "not representable in bf16"
    return (bits >> 16).astype("<u2").tobytes()


def safetensors_bytes(tensors, metadata=None, bf16=()):
    """Serialises {name: array}: floats as F32 (those named in bf16 as BF16), integers as I32, in the order given."""
    header, chunks, offset = {}, [], 0
    if metadata:
        header["__metadata__"] = {key: str(value) for key, value in metadata.items()}
    for name, values in tensors.items():
        values = np.asarray(values)
        kind = "I32" if np.issubdtype(values.dtype, np.integer) else "BF16" if name in bf16 else "F32"
        data = bf16_bytes(values) if kind == "BF16" else np.ascontiguousarray(values, DTYPES[kind]).tobytes()
        header[name] = {"dtype": kind, "shape": list(values.shape), "data_offsets": [offset, offset + len(data)]}
        chunks.append(data)
        offset += len(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the data starts 8-byte aligned
    return struct.pack("<Q", len(text)) + text + b"".join(chunks)


def read_safetensors(path):
    """Returns ({name: array}, metadata)."""
    raw = pathlib.Path(path).read_bytes()
    (size,) = struct.unpack_from("<Q", raw)
    header = json.loads(raw[8 : 8 + size])
    metadata = header.pop("__metadata__", {})
    body, tensors = raw[8 + size :], {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        tensors[name] = np.frombuffer(body[begin:end], DTYPES[entry["dtype"]]).reshape(entry["shape"])
    return tensors, metadata


def draw(rng, *shape, std=1.0):
    """Normal numbers that float32 holds exactly, as float64."""
    return (rng.standard_normal(shape) * std).astype(np.float32).astype(np.float64)


def uniform(rng, *shape, bound=1.0):
    return rng.uniform(-bound, bound, shape).astype(np.float32).astype(np.float64)


def array_of(tensor):
    """A PyTorch tensor as a numpy array, which has no bfloat16."""
    tensor = tensor.detach()
    return (tensor.double() if str(tensor.dtype) == "torch.bfloat16" else tensor).numpy()


def relative(got, want):
    """Norm of the difference over the norm of what is wanted."""
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    return float(np.linalg.norm((got - want).ravel()) / max(np.linalg.norm(want.ravel()), 1e-300))


class Output:
    """Writes files under a folder; with --check compares instead, so that a script proves its own files."""

    def __init__(self, folder):
        self.folder, self.check, self.failed = pathlib.Path(folder), "--check" in sys.argv[1:], False

    def write(self, name, data):
        path = self.folder / name
        if self.check:
            same = path.exists() and path.read_bytes() == data
            self.failed |= not same
            print(f"{'same     ' if same else 'DIFFERENT'} {name}")
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            print(f"wrote {name} ({len(data)} bytes)")

    def exit(self):
        sys.exit(1 if self.failed else 0)
