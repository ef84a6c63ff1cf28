"""The engine for DeepSeekMoE language models.

    import dsmoe

    model = dsmoe.Model("my-model")            # a Hugging Face folder or a .gguf file
    print(model.generate("Once upon a time", max_tokens=64).text)

Arrays are NumPy's. `dsmoe.torch`, which is imported on its own and needs PyTorch, has the layer as an nn.Module.
Long calls release the interpreter lock, and Ctrl-C ends them. What the library refuses is a `dsmoe.Error`.
"""

from ._core import Error, Tokenizer, presets
from ._model import Evaluation, Generation, Model, Overrides, Piece, Routing, Session
from ._tools import Inspection, Plan, convert, inspect, plan, quantize
from ._train import TrainResult, train

__all__ = [
    "Error",
    "Evaluation",
    "Generation",
    "Inspection",
    "Model",
    "Overrides",
    "Piece",
    "Plan",
    "Routing",
    "Session",
    "Tokenizer",
    "TrainResult",
    "convert",
    "inspect",
    "plan",
    "presets",
    "quantize",
    "train",
]
