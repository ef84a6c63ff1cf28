"""The layer as a module: moved, copied, pickled."""

import copy
import io
import pickle

import pytest

torch = pytest.importorskip("torch")

from dsmoe.torch import MoeLayer  # noqa: E402

D = 32


def make(**config):
    torch.manual_seed(0)
    layer = MoeLayer(D, 16, 8, 3, 2, selection_bias=True, score="sigmoid", **config)
    layer.gate_bias.uniform_(0.1, 0.2)
    return layer


@pytest.mark.parametrize(
    "move",
    [
        lambda m: m.bfloat16(),
        lambda m: m.half(),
        lambda m: m.double(),
        lambda m: m.to(torch.bfloat16),
        lambda m: m.to("cpu", torch.bfloat16).float(),
        lambda m: torch.nn.Sequential(m).bfloat16()[0],
    ],
)
def test_the_bias_keeps_its_values(move):
    layer = make()
    bias = layer.gate_bias.clone()
    assert not torch.equal(bias.bfloat16().float(), bias)  # the control: rounding would be seen
    layer = move(layer)
    assert layer.gate_bias.dtype == torch.float32 and torch.equal(layer.gate_bias, bias)
    assert torch.equal(layer.state_dict()["gate.e_score_correction_bias"], bias)


def test_to_and_from_the_meta_device():
    layer = make().to("meta", torch.bfloat16)
    assert layer.gate_bias.is_meta and layer.gate_bias.dtype == torch.float32 and layer.gate.dtype == torch.bfloat16
    layer = layer.to_empty(device="cpu")
    assert layer.gate_bias.device.type == "cpu" and layer.gate_bias.dtype == torch.float32
    layer.load_state_dict(make().state_dict())
    assert torch.equal(layer.gate_bias, make().gate_bias)


@pytest.mark.parametrize(
    "copied",
    [
        copy.copy,
        copy.deepcopy,
        lambda m: pickle.loads(pickle.dumps(m)),
        lambda m: saved(m),
        lambda m: copy.deepcopy(torch.nn.Sequential(m))[0],
    ],
    ids=["copy", "deepcopy", "pickle", "torch.save", "inside a model"],
)
def test_copies_after_a_call_in_training(copied):
    layer, x = make(seq_balance_alpha=0.1, record_routing=True), torch.randn(2, 5, D)
    y = layer(x)
    other = copied(layer)
    assert (other.aux_loss, other.losses, other.experts, other.weights) == (None,) * 4
    assert layer.aux_loss is not None and layer.experts is not None  # the call is still this one's
    assert torch.equal(other(x), y) and other.aux_loss.item() == layer.aux_loss.item()
    (y.sum() + layer.aux_loss).backward()


def saved(module):
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    return torch.load(file, weights_only=False)
