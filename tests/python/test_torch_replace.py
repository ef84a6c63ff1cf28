"""replace(): blocks as Hugging Face and DeepSeek's repositories write them, and what is not such a block."""

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import dsmoe.torch  # noqa: E402
from dsmoe.torch import MoeLayer  # noqa: E402

D, F, E, K = 32, 16, 8, 2


class Mlp(nn.Module):
    def __init__(self, width, act=nn.functional.silu, bias=False):
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(D, width, bias), nn.Linear(D, width, bias)
        self.down_proj = nn.Linear(width, D, bias)
        self.act_fn = act

    def forward(self, x):
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


class Gate(nn.Module):
    """With the fields that DeepSeek's remote code has."""

    def __init__(self, **fields):
        super().__init__()
        self.top_k, self.scoring_func, self.norm_topk_prob, self.alpha, self.seq_aux = K, "softmax", True, 0.01, True
        for name, value in fields.items():
            setattr(self, name, value)
        self.weight = nn.Parameter(torch.randn(E, D) * 0.3)

    def forward(self, x):
        w, index = (x @ self.weight.T).softmax(-1).topk(self.top_k, -1)
        return index, w / w.sum(-1, keepdim=True) if self.norm_topk_prob else w


class DeepseekMoE(nn.Module):
    def __init__(self, shared=2 * F, mlp=None, **gate):
        super().__init__()
        self.experts = nn.ModuleList([Mlp(F, **(mlp or {})) for _ in range(E)])
        self.gate = Gate(**gate)
        if shared:
            self.shared_experts = Mlp(shared, **(mlp or {}))

    def forward(self, x):
        u = x.flatten(0, -2)
        index, weights = self.gate(u)
        y = torch.zeros_like(u)
        for k in range(K):
            for e in range(E):
                rows = index[:, k] == e
                y[rows] += weights[rows, k, None] * self.experts[e](u[rows])
        return y.reshape(x.shape) + self.shared_experts(x)


class Other(nn.Module):
    def __init__(self):
        super().__init__()
        self.experts, self.gate = nn.ModuleList([Mlp(F)]), nn.Linear(D, 1, bias=False)


def test_a_block_of_the_remote_code():
    torch.manual_seed(0)
    model = nn.ModuleDict({"a": DeepseekMoE(), "b": nn.Linear(D, D)}).train()
    x = torch.randn(2, 5, D)
    before, state = model["a"](x), {k: v.clone() for k, v in model.state_dict().items()}
    report = dsmoe.torch.replace(model)
    assert report.replaced == ["a"] and report.kept == {} and isinstance(model["a"], MoeLayer)
    after = model["a"](x)
    assert torch.allclose(before, after, atol=1e-5)
    assert model["a"].training and model["a"].attach_aux_loss
    now = model.state_dict()
    assert set(now) == set(state) and all(torch.equal(now[k], state[k]) for k in state)
    model.load_state_dict(state)


@pytest.mark.parametrize(
    "block, reason",
    [
        (lambda: DeepseekMoE(topk_method="by_the_moon"), "by_the_moon"),
        (lambda: DeepseekMoE(shared=2 * F + 1), "no multiple"),
        (lambda: DeepseekMoE(mlp={"act": torch.relu}), "silu"),
        (lambda: DeepseekMoE(mlp={"bias": True}), "biases"),
        (lambda: DeepseekMoE().half(), "float16"),
        (lambda: DeepseekMoE().to("meta"), "the device meta"),
        (Other, "Other is not a block that is known"),
    ],
)
def test_what_the_layer_does_not_have_stays(block, reason):
    model = nn.ModuleDict({"moe": block()})
    report = dsmoe.torch.replace(model)
    assert report.replaced == [] and reason in report.kept["moe"] and reason in str(report)
    assert not isinstance(model["moe"], MoeLayer)


def test_a_block_that_computes_something_else_is_found_out():
    class Louder(DeepseekMoE):
        def forward(self, x):
            return 2 * super().forward(x)

    Louder.__name__ = "DeepseekMoE"
    model = nn.ModuleDict({"moe": Louder()})
    assert "differs" in dsmoe.torch.replace(model).kept["moe"]
    assert dsmoe.torch.replace(model, check=False).replaced == ["moe"]


class DeepseekV3MoE(DeepseekMoE):
    """Groups and a bias, with the fields on the block: `uses_bias` and `groups` are what it does, whatever they say."""

    def __init__(self, groups=4, uses_bias=True, n_group=4):
        super().__init__(alpha=0.0, scoring_func="sigmoid")
        self.n_group, self.topk_group, self.groups, self.uses_bias = n_group, 2, groups, uses_bias
        self.gate.register_buffer("e_score_correction_bias", torch.zeros(E))
        self.gate.forward = self.choose

    def choose(self, x):
        s = (x @ self.gate.weight.T).sigmoid()
        choice = s + self.gate.e_score_correction_bias if self.uses_bias else s
        by_group = choice.unflatten(-1, (self.groups, -1))
        best = by_group.topk(2, -1).values.sum(-1).topk(min(2, self.groups), -1).indices
        keep = torch.zeros(len(x), self.groups).scatter(-1, best, 1.0).repeat_interleave(E // self.groups, -1)
        index = choice.masked_fill(keep == 0, float("-inf")).topk(K, -1).indices
        w = s.gather(-1, index)
        return index, w / w.sum(-1, keepdim=True)


def test_groups_are_found_on_the_block():
    torch.manual_seed(0)
    model = nn.ModuleDict({"moe": DeepseekV3MoE()})
    x = torch.randn(40, D)
    before = model["moe"](x)
    report = dsmoe.torch.replace(model, check=False)  # what is read from the fields, with nothing to correct it
    assert report.replaced == ["moe"]
    assert torch.allclose(model["moe"](x), before, atol=1e-5)


@pytest.mark.parametrize("wrong", [dict(groups=1), dict(uses_bias=False)], ids=["groups", "bias"])
def test_a_gate_that_differs_for_some_tokens_is_found_out(wrong):
    torch.manual_seed(0)
    model = nn.ModuleDict({"moe": DeepseekV3MoE(**wrong)})
    assert "tokens" in dsmoe.torch.replace(model).kept["moe"]
    assert not model["moe"].gate.e_score_correction_bias.any()  # as it was before the check


def test_the_check_leaves_the_bias_as_it_was():
    torch.manual_seed(0)
    model = nn.ModuleDict({"moe": DeepseekV3MoE(), "other": DeepseekV3MoE()})
    drawn = torch.rand(E)
    model["other"].gate.e_score_correction_bias.copy_(drawn)
    assert dsmoe.torch.replace(model).replaced == ["moe", "other"]
    assert not model["moe"].gate_bias.any() and torch.equal(model["other"].gate_bias, drawn)


def test_many_experts_in_bfloat16():
    """A gate whose logits are rounded to bfloat16 chooses other experts for some tokens: no reason to keep the block."""

    class Many(DeepseekMoE):
        def __init__(self):
            super().__init__()
            self.experts = nn.ModuleList([Mlp(F) for _ in range(128)])
            self.gate.weight, self.gate.top_k = nn.Parameter(torch.randn(128, D) * 0.05), 8
            nn.init.zeros_(self.shared_experts.down_proj.weight)  # nothing but the chosen experts is seen

        def forward(self, x):
            u = x.flatten(0, -2)
            w, index = (u @ self.gate.weight.T).float().softmax(-1).topk(8, -1)
            w = (w / w.sum(-1, keepdim=True)).to(x.dtype)
            y = torch.stack([sum(w[t, k] * self.experts[int(index[t, k])](u[t]) for k in range(8)) for t in range(len(u))])
            return y.reshape(x.shape) + self.shared_experts(x)

    Many.__name__ = "DeepseekMoE"
    torch.manual_seed(0)
    model = nn.ModuleDict({"moe": Many().bfloat16()})
    weight = model["moe"].gate.weight.clone()
    assert dsmoe.torch.replace(model).replaced == ["moe"]
    assert torch.equal(model["moe"].gate, weight) and model["moe"].experts is None and not model["moe"].record_routing


def small(name):
    transformers = pytest.importorskip("transformers")
    common = dict(
        vocab_size=64, hidden_size=D, intermediate_size=48, moe_intermediate_size=F, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=64, num_experts_per_tok=K,
    )  # fmt: skip
    deepseek = dict(
        n_routed_experts=E, n_shared_experts=2, first_k_dense_replace=1, q_lora_rank=None, kv_lora_rank=16, qk_nope_head_dim=8,
        qk_rope_head_dim=8, v_head_dim=8, routed_scaling_factor=1.5, n_group=4, topk_group=2,
    )  # fmt: skip
    qwen = dict(num_experts=E, decoder_sparse_step=1, norm_topk_prob=True, shared_expert_intermediate_size=24, head_dim=8)
    make = {
        "DeepseekV2": lambda t: t.DeepseekV2ForCausalLM(
            t.DeepseekV2Config(**common, **deepseek, topk_method="group_limited_greedy")
        ),
        "DeepseekV3": lambda t: t.DeepseekV3ForCausalLM(t.DeepseekV3Config(**common, **deepseek)),
        "Qwen2Moe": lambda t: t.Qwen2MoeForCausalLM(t.Qwen2MoeConfig(**common, **qwen)),
        "Qwen3Moe": lambda t: t.Qwen3MoeForCausalLM(t.Qwen3MoeConfig(**common, **qwen)),
    }
    torch.manual_seed(0)
    try:
        model = make[name](transformers)
    except AttributeError:
        pytest.skip(f"this transformers has no {name}")
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() > 1:
                p.normal_(std=0.2)
    return model.eval()


@pytest.mark.parametrize("name", ["DeepseekV2", "DeepseekV3", "Qwen2Moe", "Qwen3Moe"])
def test_models_of_transformers(name, tmp_path):
    model = small(name)
    ids = torch.arange(1, 13).reshape(2, 6)
    before = model(ids, labels=ids)
    before.loss.backward()
    grads = {n: p.grad.clone() for n, p in model.named_parameters() if ".mlp." not in n}
    model.zero_grad()
    report = dsmoe.torch.replace(model)
    assert len(report.replaced) == (1 if name.startswith("Deepseek") else 2) and not report.kept, str(report)
    after = model(ids, labels=ids)
    after.loss.backward()
    assert torch.allclose(before.logits, after.logits, atol=1e-3, rtol=1e-3)
    for n, p in model.named_parameters():
        if n in grads:
            error = (p.grad - grads[n]).norm() / grads[n].norm().clamp_min(1e-9)
            assert error < 1e-3, (n, error)
    assert any("experts.0.gate_proj.weight" in k for k in model.state_dict())
    model.load_state_dict(model.state_dict())
    model.save_pretrained(tmp_path / "saved")  # a checkpoint that transformers reads as its own
    again = type(model).from_pretrained(tmp_path / "saved").eval()
    assert torch.equal(again(ids).logits, before.logits)
