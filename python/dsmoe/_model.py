"""A model: generating, logits, loss, routing."""

from __future__ import annotations

import atexit
import json
import os
import queue
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, Union, overload

import numpy as np
import numpy.typing as npt

from . import _core

Ids = Union[Sequence[int], npt.NDArray[np.integer]]
Prompt = Union[str, Ids]


@dataclass(frozen=True)
class Overrides:
    """How experts are chosen for one call, where not as the model says."""

    skip_best: int = 0  # mask each token's N highest-scoring experts
    experts_per_token: int = 0  # 0: as the model says
    drop_shared: bool = False
    disabled: Sequence[tuple[int, int]] = ()  # (layer, expert): never chosen


@dataclass(frozen=True)
class Piece:
    """A part of a text as it is generated. The text is whole characters, so it may lag behind the id; -1: no new token."""

    id: int
    text: str


@dataclass(frozen=True)
class Generation:
    ids: npt.NDArray[np.int32]
    text: str  # without stop strings; "" for a model without a tokenizer
    finish: str  # "length", "eos", "stop" or "context"
    prompt_tokens: int  # that were processed; those in the KV cache already do not count
    prompt_seconds: float
    seconds: float

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Evaluation:
    loss: float  # mean, in nats per token
    tokens: int  # that were predicted
    sequences: int

    @property
    def perplexity(self) -> float:
        return float(np.exp(self.loss))


@dataclass(frozen=True)
class Routing:
    """Which experts the tokens of a text chose. L MoE layers, T tokens, K experts per token."""

    layers: npt.NDArray[np.int32]  # [L] the layers' numbers
    experts: npt.NDArray[np.int32]  # [L, T, K] best first
    weights: npt.NDArray[np.float32]  # [L, T, K] what the experts' outputs are multiplied by
    routed_experts: int  # E

    def load(self) -> npt.NDArray[np.int64]:
        """[L, E] tokens that chose each expert."""
        return np.stack([np.bincount(e.ravel(), minlength=self.routed_experts) for e in self.experts]).astype(np.int64)


def ids_array(ids: Ids) -> npt.NDArray[np.int32]:
    array = np.asarray(ids)
    if array.size == 0:
        array = array.astype(np.int32)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise TypeError("token ids are whole numbers in one dimension")
    limit = np.iinfo(np.int32)
    if array.size and (array.min() < limit.min or array.max() > limit.max):
        raise ValueError("a token id does not fit 32 bits")
    return np.ascontiguousarray(array, dtype=np.int32)


def is_batch(prompt: object) -> bool:
    """A list of texts or of sequences of ids, not one of them."""
    if isinstance(prompt, str):
        return False
    if isinstance(prompt, np.ndarray):
        return prompt.ndim == 2
    if not isinstance(prompt, Sequence):
        raise TypeError("expected a text, token ids, or a list of these")
    return len(prompt) > 0 and not isinstance(prompt[0], (int, np.integer))


def overrides_dict(overrides: Overrides | Mapping[str, Any] | None) -> dict[str, Any] | None:
    if overrides is None:
        return None
    found = asdict(overrides) if isinstance(overrides, Overrides) else dict(overrides)
    if "disabled" in found:
        found["disabled"] = [tuple(pair) for pair in found["disabled"]]
    return found


def generate_dict(options: Mapping[str, Any]) -> dict[str, Any]:
    """The names that users of other libraries expect, as the library has them."""
    out = dict(options)
    for ours, theirs in (("n_predict", "max_tokens"), ("temp", "temperature")):
        if theirs in out:
            if ours in out:
                raise TypeError(f"{theirs} and {ours} are the same option; give one")
            out[ours] = out.pop(theirs)
    if isinstance(out.get("json_schema"), Mapping):
        out["json_schema"] = json.dumps(out["json_schema"])
    return out


def generation(values: tuple[Any, ...]) -> Generation:
    return Generation(*values)


class _Work:
    """What a stream shares with its thread, which must not hold the stream itself: that is how it learns that nobody
    listens any more."""

    def __init__(self) -> None:
        self.result: Generation | None = None
        self.queue: queue.SimpleQueue[Piece | BaseException | None] = queue.SimpleQueue()
        self.stop = threading.Event()
        self.cancel = _core.Cancel()  # for while the prompt is processed

    def on_piece(self, token: int, text: str) -> bool:
        if not self.stop.is_set():
            self.queue.put(Piece(token, text))
        return not self.stop.is_set()

    def run(self, call: Callable[[_Work], Generation]) -> None:
        try:
            self.result = call(self)
            self.queue.put(None)
        except BaseException as error:  # it belongs to who iterates, unless that is over
            self.queue.put(None if self.stop.is_set() else error)


_running: weakref.WeakSet[Stream] = weakref.WeakSet()


@atexit.register
def _end_streams() -> None:
    for stream in list(_running):  # no thread may be in a call while the interpreter goes
        stream.close()


class Stream(Iterator[Piece]):
    """Pieces of a text as they come. `result` is the whole of it once they have all come. Closing or forgetting it ends the
    work."""

    def __init__(self, call: Callable[[_Work], Generation]) -> None:
        self._work = _Work()
        self._thread = threading.Thread(target=self._work.run, args=(call,), name="dsmoe-generate", daemon=True)
        self._thread.start()
        _running.add(self)

    @property
    def result(self) -> Generation | None:
        return self._work.result

    def __next__(self) -> Piece:
        try:
            item = self._work.queue.get()
        except BaseException:  # Ctrl-C
            self.close()
            raise
        if isinstance(item, Piece):
            return item
        self._thread.join()
        self._work.queue.put(None)  # for whoever asks again
        if item is None:
            raise StopIteration
        raise item

    def close(self) -> None:
        self._work.stop.set()
        self._work.cancel.set()
        if self._thread is not threading.current_thread():  # where garbage may be collected, too
            self._thread.join()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


class Session:
    """One sequence with its KV cache: what was said before need not be computed again. For one thread at a time; a second
    one that calls meanwhile gets an Error."""

    def __init__(self, model: Model, **options: Any) -> None:
        self.model = model
        self._core = _core.Session(model._core, options)

    def generate(
        self,
        prompt: Prompt,
        *,
        stream: bool = False,
        on_piece: Callable[[int, str], bool | None] | None = None,
        overrides: Overrides | Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Any:
        """Processes the prompt after what is in the cache, and generates. See Model.generate. Only a text at the beginning
        gets the tokenizer's bos token."""
        # A text that goes on does not begin once more.
        add_bos = False if isinstance(prompt, str) and len(self.history) > 0 else None
        return self._run(self.model._encode(prompt, add_bos), stream, on_piece, overrides, options)

    def chat(
        self,
        messages: Sequence[Mapping[str, str]],
        *,
        stream: bool = False,
        on_piece: Callable[[int, str], bool | None] | None = None,
        overrides: Overrides | Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Any:
        """The answer to a whole conversation, [{"role": ..., "content": ...}, ...]; only its new part is processed."""
        return self._run([dict(m) for m in messages], stream, on_piece, overrides, options)

    def _run(self, prompt: Any, stream: bool, on_piece: Any, overrides: Any, options: Mapping[str, Any]) -> Any:
        given, changes = generate_dict(options), overrides_dict(overrides)
        if not stream:
            return generation(self._core.generate(prompt, given, changes, on_piece))
        if on_piece is not None:
            raise TypeError("stream gives the pieces; leave on_piece out")
        return Stream(lambda w: generation(self._core.generate(prompt, given, changes, w.on_piece, w.cancel)))

    @property
    def history(self) -> npt.NDArray[np.int32]:
        """All tokens in the cache."""
        return self._core.history()

    @property
    def context(self) -> int:
        """Tokens that fit."""
        return self._core.context

    def rewind(self, tokens: int) -> None:
        """Drops all but the first `tokens` from the cache."""
        self._core.rewind(tokens)


class Model:
    """A language model with its tokenizer, from a Hugging Face folder or a GGUF file. Threads may share it.

    Options are those of docs/options.md, with _ for -: device ("cpu", "cuda"; None: a GPU if there is one and the model fits
    it), dtype, load. `threads` is the number of CPU threads of the model's calls (0: one per physical core); results do
    not depend on it.
    """

    def __init__(self, path: str | os.PathLike[str], *, device: str | None = None, threads: int = 0, **options: Any) -> None:
        self._core = _core.Model.load(os.fspath(path), {"device": device, **options})
        self.threads = threads

    @classmethod
    def random(
        cls,
        config: str | Mapping[str, Any],
        *,
        seed: int = 0,
        dtype: str = "f32",
        tokenizer: _core.Tokenizer | None = None,
        threads: int = 0,
    ) -> Model:
        """Random weights. `config` is a preset's name, or the fields of a config.json."""
        text = _core.preset_json(config) if isinstance(config, str) else json.dumps(dict(config))
        return cls._of(_core.Model.random(text, seed, dtype, tokenizer), threads)

    @classmethod
    def _of(cls, core: _core.Model, threads: int = 0) -> Model:
        model = cls.__new__(cls)
        model._core = core
        model.threads = threads
        return model

    config: dict[str, Any] = property(lambda self: json.loads(self._core.config_json))  # type: ignore[assignment]
    tokenizer: _core.Tokenizer | None = property(lambda self: self._core.tokenizer)  # type: ignore[assignment]
    dtype: str = property(lambda self: self._core.dtype)  # type: ignore[assignment]
    device: str = property(lambda self: self._core.device)  # type: ignore[assignment]
    path: str = property(lambda self: self._core.path)  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"dsmoe.Model({self.path!r}, dtype={self.dtype!r}, device={self.device!r})"

    def save(self, folder: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """As a Hugging Face folder, in the dtype that it has in memory."""
        self._core.save(os.fspath(folder), overwrite)

    def _encode(self, prompt: Prompt, add_bos: bool | None = None) -> npt.NDArray[np.int32]:
        if not isinstance(prompt, str):
            return ids_array(prompt)
        if self.tokenizer is None:
            raise _core.Error("the model has no tokenizer; give token ids")
        return self.tokenizer.encode(prompt, add_bos=add_bos, add_eos=False)

    def _encode_all(self, prompt: Any) -> list[npt.NDArray[np.int32]]:
        return [self._encode(p) for p in (prompt if is_batch(prompt) else [prompt])]

    def session(self, **options: Any) -> Session:
        """A sequence with a KV cache. Options: context, kv_type, ubatch_size, threads."""
        return Session(self, **{"threads": self.threads, **options})

    @overload
    def generate(self, prompt: Prompt, *, stream: Literal[True], **options: Any) -> Stream: ...

    @overload
    def generate(self, prompt: Prompt, *, stream: Literal[False] = False, **options: Any) -> Generation: ...

    @overload
    def generate(self, prompt: Sequence[Prompt], *, stream: Literal[False] = False, **options: Any) -> list[Generation]: ...

    def generate(
        self,
        prompt: Any,
        *,
        stream: bool = False,
        overrides: Overrides | Mapping[str, Any] | None = None,
        context: int = 0,
        kv_type: str | None = None,
        **options: Any,
    ) -> Any:
        """Continues a prompt, a text or token ids: a Generation. A list of prompts runs in common passes and gives a list.
        With stream=True, an iterator of pieces, for one prompt.

        Options: max_tokens, temperature (0: greedy), top_k, top_p, min_p, repeat_penalty, repeat_last_n, presence_penalty,
        frequency_penalty, seed, stop, ignore_eos, grammar, json_schema. Without them, the model's own defaults.
        """
        given = generate_dict(options)
        if is_batch(prompt):
            if stream:
                raise TypeError("stream is for one prompt; iterate over several with threads, or generate them as a list")
            given.update(context=context, kv_type=kv_type, threads=self.threads)
            prompts = self._encode_all(prompt)
            return [generation(g) for g in _core.generate_batch(self._core, prompts, given, overrides_dict(overrides))]
        ids = self._encode(prompt)
        if context == 0:  # no more memory than this call can use
            most, wanted = self._core.max_position_embeddings, given.get("n_predict", 256)
            context = most if wanted < 0 else min(most, len(ids) + wanted + 1)
        session = self.session(context=context, kv_type=kv_type)
        return session._run(ids, stream, None, overrides, given)

    def logits(self, prompt: Prompt, *, overrides: Any = None, **options: Any) -> npt.NDArray[np.float32]:
        """[T, V]: row t says what follows after token t."""
        return self._core.logits(self._encode(prompt), {"threads": self.threads, **options}, overrides_dict(overrides))

    def loss(self, text: Any, *, overrides: Any = None, **options: Any) -> float:
        """The mean loss over the tokens of a text, of token ids, or of a list of these, in nats."""
        return self._evaluate(self._encode_all(text), overrides, options).loss

    def evaluate(self, data: str | os.PathLike[str], *, overrides: Any = None, **options: Any) -> Evaluation:
        """Loss and perplexity on a text, .jsonl or .ids file, or "builtin". Options: context, limit, field, score_from."""
        reading = {k: options[k] for k in ("field", "context", "limit", "parse_special") if k in options}
        sequences = self._core.read_sequences({"data": os.fspath(data), **reading})
        return self._evaluate(sequences, overrides, {k: v for k, v in options.items() if k not in reading})

    def _evaluate(self, sequences: Any, overrides: Any, options: Mapping[str, Any]) -> Evaluation:
        given = {"threads": self.threads, **options}
        total, tokens, count = self._core.loss(sequences, given, overrides_dict(overrides))
        return Evaluation(total / tokens if tokens else 0.0, tokens, count)

    def routing(self, prompt: Prompt, *, overrides: Any = None, **options: Any) -> Routing:
        """The experts and weights of every token in every MoE layer."""
        given = {"threads": self.threads, **options}
        layers, experts, weights = self._core.routing(self._encode(prompt), given, overrides_dict(overrides))
        return Routing(layers, experts, weights, self._core.routed_experts)
