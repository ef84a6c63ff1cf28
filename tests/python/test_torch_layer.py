"""The layer in PyTorch against the same layer written in plain torch: outputs and gradients."""

import gc

import pytest

torch = pytest.importorskip("torch")

import dsmoe  # noqa: E402
import dsmoe.torch  # noqa: E402
from dsmoe import _core  # noqa: E402
from dsmoe.torch import MoeLayer  # noqa: E402

D, F, E, S, K = 32, 16, 8, 2, 3
CONFIGS = {
    "plain": {},
    "balance": dict(seq_balance_alpha=0.3, batch_balance_alpha=0.2, router_z_alpha=0.1),
    "norm": dict(norm_topk_prob=True, routed_scaling_factor=2.5),
    "v3": dict(
        score="sigmoid",
        norm_topk_prob=True,
        routed_scaling_factor=2.5,
        selection_bias=True,
        groups=4,
        groups_per_token=2,
        group_score="top2_sum",
    ),
    "v2": dict(groups=4, groups_per_token=2),
}


class Reference(torch.nn.Module):
    """The equations, in plain torch, in the dtype of the parameters that are copied into it."""

    def __init__(self, layer, shared=S, **c):
        super().__init__()
        self.c, self.shared = c, shared
        for name in ("gate", "gate_up", "down"):
            setattr(self, name, torch.nn.Parameter(getattr(layer, name).detach().double()))
        self.bias = None if layer.gate_bias is None else layer.gate_bias.double()

    def chosen(self, logits):
        c = self.c
        s = logits.sigmoid() if c.get("score") == "sigmoid" else logits.softmax(-1)
        choice = s if self.bias is None else s + self.bias
        groups = c.get("groups", 1)
        if groups > 1:
            by_group = choice.detach().unflatten(-1, (groups, -1))
            top = by_group.topk(2, -1).values.sum(-1) if c.get("group_score") == "top2_sum" else by_group.max(-1).values
            keep = torch.zeros_like(top).scatter(-1, top.topk(c["groups_per_token"], -1).indices, 1.0)
            choice = choice.masked_fill(keep.repeat_interleave(E // groups, -1) == 0, float("-inf"))
        index = choice.topk(K, -1).indices
        w = s.gather(-1, index)
        if c.get("norm_topk_prob"):
            w = w / (w.sum(-1, keepdim=True) + 1e-20)
        return s, index, w * c.get("routed_scaling_factor", 1.0)

    def losses(self, logits, s, index, sequence):
        c = self.c
        hits = torch.zeros_like(s).scatter(-1, index, 1.0)

        def balance(hits, s):  # over the tokens of dimension -2
            return (hits.mean(-2) * E / K * s.mean(-2)).sum(-1).mean()

        total = c.get("batch_balance_alpha", 0) * balance(hits, s)
        total = total + c.get("seq_balance_alpha", 0) * balance(
            hits.unflatten(0, (-1, sequence)), s.unflatten(0, (-1, sequence))
        )
        return total + c.get("router_z_alpha", 0) * logits.logsumexp(-1).pow(2).mean()

    def forward(self, x):
        sequence = x.shape[1] if x.dim() == 3 else x.shape[0]
        u = x.double().flatten(0, -2)
        logits = u @ self.gate.T
        s, index, w = self.chosen(logits)
        h = torch.einsum("td,epfd->tepf", u, self.gate_up)
        ffn = torch.einsum("tef,edf->ted", torch.nn.functional.silu(h[:, :, 0]) * h[:, :, 1], self.down)
        routed = ffn[:, self.shared :].gather(1, index[..., None].expand(-1, -1, D))
        y = ffn[:, : self.shared].sum(1) + (w[..., None] * routed).sum(1)
        return y.reshape(x.shape), self.losses(logits, s, index, sequence)


def make(dtype=torch.float32, seed=0, **config):
    torch.manual_seed(seed)
    layer = MoeLayer(D, F, E, K, S, dtype=dtype, **config)
    with torch.no_grad():
        for p in layer.parameters():
            p.normal_(std=0.3)
        if layer.gate_bias is not None:
            layer.gate_bias.normal_(std=0.1)
    return layer


def draw(*shape, dtype=torch.float32, grad=True):
    return torch.randn(*shape, D).to(dtype).requires_grad_(grad)


def close(a, b, limit):
    error = (a.double() - b.double()).norm() / b.double().norm().clamp_min(1e-12)
    assert error < limit, error.item()


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_outputs_and_gradients_are_the_references(config):
    layer = make(**config)
    reference = Reference(layer, **config)
    x = draw(3, 7)
    x2 = x.detach().double().requires_grad_()
    y = layer(x)
    dy = torch.randn_like(y)
    ((y * dy).sum() + 2 * layer.aux_loss).backward()
    y2, aux2 = reference(x2)
    ((y2 * dy).sum() + 2 * aux2).backward()
    close(y, y2, 1e-5)
    assert abs(layer.aux_loss.item() - aux2.item()) < 1e-5 * max(1, abs(aux2.item()))
    close(x.grad, x2.grad, 1e-4)
    for name in ("gate", "gate_up", "down"):
        close(getattr(layer, name).grad, getattr(reference, name).grad, 1e-4)


def test_the_reference_itself_passes_gradcheck():
    config = CONFIGS["balance"]
    reference = Reference(make(**config), **config)
    x = draw(1, 3).detach().double().requires_grad_()
    assert torch.autograd.gradcheck(lambda t: reference(t), (x,), eps=1e-6, atol=1e-5)


def test_bfloat16_within_rounding():
    layer = make(torch.bfloat16)
    reference = Reference(layer)
    x = draw(2, 9, dtype=torch.bfloat16)
    y = layer(x)
    y.float().square().sum().backward()
    x2 = x.detach().double().requires_grad_()
    reference(x2)[0].square().sum().backward()
    assert y.dtype == torch.bfloat16 and layer.down.grad.dtype == torch.bfloat16
    close(y, reference(x2)[0], 2e-2)
    close(x.grad, x2.grad, 4e-2)
    close(layer.gate_up.grad, reference.gate_up.grad, 4e-2)


def test_memory_is_shared_and_results_do_not_depend_on_threads():
    layer, x = make(), draw(50)
    y = layer(x)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        assert torch.equal(layer(x), y)
    finally:
        torch.set_num_threads(before)
    with torch.no_grad():
        layer.down.mul_(2)  # in place: the next call sees it
    assert torch.equal(layer(x), 2 * y)


def test_shapes_and_strides():
    layer = make()
    x = draw(2, 3, 4)
    assert torch.equal(layer(x), layer(x.flatten(0, 2)).reshape(x.shape))
    turned = draw(5, 6).transpose(0, 1)
    assert torch.equal(layer(turned), layer(turned.contiguous()))
    assert layer(draw(0)).shape == (0, D)
    with pytest.raises(dsmoe.Error, match="x"):
        layer(torch.randn(4, D + 1))
    with pytest.raises(dsmoe.Error, match="f32|dtype|float32"):
        layer(torch.randn(4, D, dtype=torch.float64))
    with pytest.raises(dsmoe.Error, match="experts_per_token"):
        MoeLayer(D, F, 2, 3)


def test_nothing_is_kept_without_gradients():
    layer, x = make(), draw(4, grad=False)
    with torch.no_grad():
        y = layer(x)
    assert layer.aux_loss is None and not y.requires_grad and _core.waiting_passes() == 0
    z = layer(x)  # the weights want gradients
    assert z.requires_grad and _core.waiting_passes() == 1
    layer.aux_loss = None
    del z
    gc.collect()
    assert _core.waiting_passes() == 0


def test_the_graph_may_be_kept_for_a_second_backward():
    layer, x = make(**CONFIGS["balance"]), draw(6)
    loss = layer(x).square().sum() + layer.aux_loss
    loss.backward(retain_graph=True)
    first = [p.grad.clone() for p in (x, *layer.parameters())]
    loss.backward()
    for p, once in zip((x, *layer.parameters()), first):
        assert torch.equal(p.grad, 2 * once)


def test_what_is_changed_in_place_before_backward_is_refused():
    layer, x = make(), draw(6)
    y = layer(x).sum()
    with torch.no_grad():
        layer.down.mul_(2)
    with pytest.raises(RuntimeError, match="inplace"):
        y.backward()


def test_the_balance_loss_alone_and_attached():
    config = CONFIGS["balance"]
    plain, attached = make(**config), make(attach_aux_loss=True, **config)
    x = draw(2, 5)
    (plain(x).sum() + plain.aux_loss).backward()
    attached(x.detach().requires_grad_()).sum().backward()
    assert attached.aux_loss is None
    for a, b in zip(plain.parameters(), attached.parameters()):
        assert torch.equal(a.grad, b.grad)
    model = torch.nn.Sequential(make(**config), make(seed=1, **config))
    model(draw(2, 5))
    total = dsmoe.torch.aux_loss(model)
    total.backward()
    assert total.item() > 0 and model[0].gate.grad.norm() > 0
    assert dsmoe.torch.aux_loss(torch.nn.Linear(2, 2)) == 0.0
    assert model[1].losses.shape == (4,) and abs(model[1].losses.sum() - model[1].aux_loss) < 1e-6


def test_routing_is_recorded_when_asked_for():
    layer, x = make(record_routing=True), draw(5)
    layer(x)
    _, index, weights = Reference(layer).chosen(x.double() @ layer.gate.double().T)
    assert torch.equal(layer.experts.long().sort(-1).values, index.sort(-1).values)
    close(layer.weights.sort(-1).values, weights.sort(-1).values, 1e-5)


def test_autocast():
    layer, x = make(), draw(3, 5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = layer(x)
    assert y.dtype == torch.bfloat16
    y.float().sum().backward()
    assert layer.down.grad.dtype == torch.float32 and x.grad.dtype == torch.float32
    close(y, layer(x), 2e-2)
    with torch.autocast("cpu", dtype=torch.float16):
        assert layer(x).dtype == torch.float16


def test_gradient_checkpointing():
    from torch.utils.checkpoint import checkpoint

    config = CONFIGS["balance"]
    a, b, x = make(**config), make(**config), draw(2, 6)
    (a(x).square().sum() + a.aux_loss).backward()
    x2 = x.detach().requires_grad_()
    y = checkpoint(lambda t: (b(t), b.aux_loss), x2, use_reentrant=False)
    (y[0].square().sum() + y[1]).backward()
    assert torch.equal(x.grad, x2.grad)
    for p, q in zip(a.parameters(), b.parameters()):
        assert torch.equal(p.grad, q.grad)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compile_gives_the_same_bits(backend):
    config = CONFIGS["balance"]
    a, b, x = make(**config), make(**config), draw(2, 6)
    compiled = torch.compile(lambda t: (b(t) * 2, b.aux_loss), backend=backend, fullgraph=True)
    (a(x) * 2).sum().add(a.aux_loss).backward()
    x2 = x.detach().requires_grad_()
    y, aux = compiled(x2)
    (y.sum() + aux).backward()
    assert torch.equal(x.grad, x2.grad)
    for p, q in zip(a.parameters(), b.parameters()):
        assert torch.equal(p.grad, q.grad)
    with torch.no_grad():
        assert torch.equal(torch.compile(b, backend=backend)(x), a(x))


def test_the_ops_are_right_for_torch():
    layer, x = make(**CONFIGS["balance"]), draw(4, grad=False)
    arguments = (x, layer.gate.detach(), None, layer.gate_up.detach(), layer.down.detach(), layer.config, False)
    torch.library.opcheck(torch.ops.dsmoe.moe_forward, arguments, test_utils=("test_schema", "test_faketensor"))


def test_state_dict_has_hugging_faces_names_both_ways():
    layer = make(**CONFIGS["v3"])
    state = layer.state_dict()
    assert state["gate.weight"].shape == (E, D) and state["gate.e_score_correction_bias"].shape == (E,)
    assert torch.equal(state["experts.3.up_proj.weight"], layer.gate_up[S + 3, 1])
    assert torch.equal(state["experts.3.down_proj.weight"], layer.down[S + 3])
    assert torch.equal(state["shared_experts.gate_proj.weight"], torch.cat([layer.gate_up[0, 0], layer.gate_up[1, 0]]))
    assert torch.equal(state["shared_experts.down_proj.weight"], torch.cat([layer.down[0], layer.down[1]], dim=1))
    other, x = make(seed=1, **CONFIGS["v3"]), draw(5)
    assert not torch.equal(other(x), layer(x))
    other.load_state_dict(state)
    assert torch.equal(other(x), layer(x))
    fused = {k: v for k, v in state.items() if not k.startswith("experts.")}
    fused["experts.gate_up_proj"] = layer.gate_up[S:].flatten(1, 2)
    fused["experts.down_proj"] = layer.down[S:]
    third = make(seed=2, **CONFIGS["v3"])
    third.load_state_dict(fused)
    assert torch.equal(third(x), layer(x))
    own = dict(gate=layer.gate, gate_up=layer.gate_up, down=layer.down, gate_bias=layer.gate_bias)
    fourth = make(seed=3, **CONFIGS["v3"])
    fourth.load_state_dict(own)
    assert torch.equal(fourth(x), layer(x))


def test_state_dicts_that_do_not_fit_are_refused():
    layer = make()
    state = layer.state_dict()
    missing = {k: v for k, v in state.items() if k != "experts.2.up_proj.weight"}
    with pytest.raises(RuntimeError, match="Missing"):
        layer.load_state_dict(missing)
    with pytest.raises(RuntimeError, match="Unexpected.*experts.99"):
        layer.load_state_dict({**state, "experts.99.up_proj.weight": torch.zeros(F, D)})
    with pytest.raises(RuntimeError, match="does not fit"):
        layer.load_state_dict({**state, "experts.2.up_proj.weight": torch.zeros(F, D + 1)})


def test_moves_between_dtypes():
    layer = make(**CONFIGS["v3"]).bfloat16()
    assert layer.gate_bias.dtype == torch.float32 and layer.gate.dtype == torch.bfloat16
    assert layer(draw(3, dtype=torch.bfloat16)).dtype == torch.bfloat16
    if not torch.cuda.is_available():
        with pytest.raises((dsmoe.Error, RuntimeError, AssertionError)):
            layer.to("cuda")(draw(3).to("cuda"))


def test_threads_may_share_a_layer():
    import threading

    layer, x = make(), draw(40)
    expected = layer(x).detach()
    got = []

    def work():
        for _ in range(20):
            got.append(torch.equal(layer(x), expected))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert got == [True] * 60


def test_the_benchmark_runs():
    import subprocess
    import sys

    from conftest import ROOT

    command = [sys.executable, ROOT / "bench/python/layer.py", "--small", "--tokens", "1,20", "--repeat", "1"]
    out = subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True).stdout
    assert "one call: forward from Python" in out and "20 tokens" in out


def test_ten_thousand_calls_leave_nothing():
    from test_calls import LIMIT, leaks

    layer, x = make(), draw(4)

    def step():
        layer(x).sum().backward()

    assert leaks(step, 10_000) < LIMIT
    layer.aux_loss = None
    gc.collect()
    assert _core.waiting_passes() == 0
