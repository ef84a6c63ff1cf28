"""Training: from random weights, from a model, or resuming a run."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from . import _core
from ._model import Model


@dataclass(frozen=True)
class TrainResult:
    folder: str  # a model's folder: dsmoe.Model(result.folder)
    steps: int  # done in all, this call's and those before
    tokens: int
    seconds: float
    stopped: bool  # before the last step
    losses: npt.NDArray[np.float64]  # of this call's steps
    evaluation: dict[str, Any] | None  # the last one: loss, tokens, domains
    best_step: int  # when the held-out loss was lowest; -1: not evaluated
    model: Model  # the trained weights, in memory


def train(
    out: str | os.PathLike[str],
    *,
    on_step: Callable[[dict[str, Any]], bool | None] | None = None,
    on_note: Callable[[str], None] | None = None,
    **options: Any,
) -> TrainResult:
    """Trains a model into the folder `out`.

    Options are those of `dsmoe train` (docs/options.md), with _ for -: model, preset, config, data, steps, batch_size, lr,
    lora_rank, resume, ... `on_step` is called after every step with a dict (step, loss, balance_loss, grad_norm, lr, tokens,
    tokens_per_second, load_max, load_min, evaluation), and ends the run by returning False. However the run ends, by that,
    by Ctrl-C or by an exception of the callback, a checkpoint is saved, and resume=True continues to the bit.
    """
    given = {k: os.fspath(v) if isinstance(v, os.PathLike) else v for k, v in options.items() if v is not None}
    if isinstance(given.get("data"), (list, tuple)):
        given["data"] = [os.fspath(d) for d in given["data"]]
    run = _core.TrainingRun.open({"out": os.fspath(out), **given}, on_note)
    result = run.run(on_step)
    return TrainResult(folder=os.fspath(out), model=Model._of(run.model), **result)
