"""What needs no running model, or only looks at one: plan, convert, quantize, inspect."""

from __future__ import annotations

import html
import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from . import _core
from ._model import Model


class Plan(dict[str, Any]):
    """What a model needs: the keys of `dsmoe plan --json`, and a table in a notebook."""

    def _repr_html_(self) -> str:
        rows = [(k.replace("_", " "), self[k]) for k in self if isinstance(self[k], (int, str))]
        cells = "".join(
            f"<tr><td>{html.escape(str(k))}</td><td style='text-align:right'>"
            f"{html.escape(f'{v:,}' if isinstance(v, int) else str(v))}</td></tr>"
            for k, v in rows
        )
        return f"<table>{cells}</table>"


def plan(preset: str | None = None, *, config: Any = None, **options: Any) -> Plan:
    """Parameters, FLOPs, memory and combinations of experts of a model that need not exist.

    One of: a preset's name; `config`, the fields of a config.json or the path of one; or `experts` and `active` (N and K of a
    conventional layer), with split, shared, hidden_size, expert_size, layers, vocab_size. Also context and batch_size.
    """
    given = {k: v for k, v in options.items() if v is not None}
    if preset is not None:
        given["preset"] = preset
    if isinstance(config, Mapping):
        given["config_json"] = json.dumps(dict(config))
    elif config is not None:
        given["config"] = os.fspath(config)
    return Plan(json.loads(_core.plan(given)))


def convert(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    type: str = "auto",
    overwrite: bool = False,
    threads: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """A model in another form: `out` is a GGUF file when it ends with .gguf, else a Hugging Face folder. `type` is f32, f16
    or bf16 (auto: as stored). Returns parameters, bytes, type and bytes_by_dtype."""
    options = {"type": type, "overwrite": overwrite, "threads": threads}
    return _core.convert(os.fspath(source), os.fspath(out), options, progress)


def quantize(source: str | os.PathLike[str], out: str | os.PathLike[str], type: str, **options: Any) -> dict[str, Any]:
    """A quantized GGUF file: `type` is, from largest to smallest, q8_0, q6_k, q5_0, q4_k_m, q4_k or q4_0."""
    if not os.fspath(out).endswith(".gguf"):
        raise ValueError("quantize writes a file whose name ends with .gguf")
    return convert(source, out, type=type, **options)


class Inspection:
    """Where a model's tokens go. In a notebook it shows itself."""

    def __init__(self, json_text: str, csv: str, page: str) -> None:
        self.data: dict[str, Any] = json.loads(json_text)  # the keys of `dsmoe inspect --json`
        self.csv = csv  # one line per layer and expert
        self.html = page  # a page that needs nothing else

    @property
    def layers(self) -> npt.NDArray[np.int64]:
        """[L] numbers of the MoE layers."""
        return np.array([layer["layer"] for layer in self.data["layers"]], dtype=np.int64)

    @property
    def load(self) -> npt.NDArray[np.int64]:
        """[L, E] tokens that chose each expert."""
        return np.array([layer["load"] for layer in self.data["layers"]], dtype=np.int64)

    @property
    def mean_weight(self) -> npt.NDArray[np.float64]:
        """[L, E] the mean weight of each expert over the tokens that chose it."""
        return np.array([layer["weight"] for layer in self.data["layers"]], dtype=np.float64)

    def coactivation(self, layer: int) -> npt.NDArray[np.int64]:
        """[E, E] tokens that chose both experts, in the layer of that index of `layers`."""
        rows = self.data["layers"][layer]["pairs"]
        return np.array([row if row else [0] * len(rows) for row in rows], dtype=np.int64)

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """The page as a file for a browser."""
        try:
            with open(path, "w" if overwrite else "x", encoding="utf-8") as file:
                file.write(self.html)
        except FileExistsError:
            message = "already exists; choose another name, or replace it with overwrite"
            raise _core.Error(f"{os.fspath(path)} {message}") from None

    def __repr__(self) -> str:
        return f"<dsmoe.Inspection of {len(self.layers)} MoE layers>"

    def _repr_html_(self) -> str:
        # A page with scripts of its own: in a frame it can neither see nor style the notebook.
        return (
            f'<iframe srcdoc="{html.escape(self.html, quote=True)}" sandbox="allow-scripts" '
            'style="width:100%;height:720px;border:0"></iframe>'
        )


def inspect(
    model: Model,
    data: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] = "builtin",
    *,
    against: Model | None = None,
    **options: Any,
) -> Inspection:
    """Runs data through a model and reports what its experts did. `data` is files, each a domain, or "DOMAIN=FILE", or
    "builtin". Options: field, limit (tokens per domain), context, sample, name."""
    sources = [data] if isinstance(data, (str, os.PathLike)) else list(data)
    given = {"data": [os.fspath(s) for s in sources], "threads": model.threads, **options}
    return Inspection(*_core.inspect(model._core, given, against._core if against is not None else None))
