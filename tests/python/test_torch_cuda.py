"""The layer on a GPU inside PyTorch: the numbers of the reference, torch's stream, nothing that waits or copies, graphs."""

import gc
import time

import pytest

torch = pytest.importorskip("torch")

from dsmoe import _core  # noqa: E402

if not torch.cuda.is_available():
    pytest.skip("needs a GPU that torch can use", allow_module_level=True)
if (why := _core.why_no_cuda()) is not None:
    pytest.skip(f"dsmoe.torch on a GPU cannot run here: {why}", allow_module_level=True)

import dsmoe  # noqa: E402
import dsmoe.torch  # noqa: E402
from dsmoe.torch import MoeLayer  # noqa: E402
from test_torch_layer import CONFIGS, Reference, close, make  # noqa: E402

BALANCE = CONFIGS["balance"]


def wide(dtype=torch.bfloat16, seed=0, **config):
    """A layer of sizes for which the GPU's fastest kernels are there."""
    torch.manual_seed(seed)
    return MoeLayer(256, 128, 16, 4, 2, dtype=dtype, device="cuda", **config)


def draw(*shape, width=256, dtype=torch.bfloat16, grad=True):
    return torch.randn(*shape, width, device="cuda").to(dtype).requires_grad_(grad)


def step(layer, x, dy):
    """y, the gradient of x, and those of the weights."""
    y = layer(x)
    loss = (y * dy).sum()
    if layer.aux_loss is not None:
        loss = loss + 2 * layer.aux_loss
    return [y.detach(), *torch.autograd.grad(loss, [x, *layer.parameters()])]


def same(a, b):
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_outputs_and_gradients_are_the_references(config, dtype):
    layer = make(**config).cuda().to(dtype)
    reference = Reference(layer, **config)
    x = draw(3, 7, width=32, dtype=dtype)
    x2 = x.detach().double().requires_grad_()
    dy = torch.randn(3, 7, 32, device="cuda").to(dtype)
    y, *grads = step(layer, x, dy)
    y2, aux2 = reference(x2)
    grads2 = torch.autograd.grad((y2 * dy).sum() + 2 * aux2, [x2, *reference.parameters()])
    limit = 1e-5 if dtype == torch.float32 else 2e-2
    close(y, y2, limit)
    assert abs(layer.aux_loss.item() - aux2.item()) < limit * max(1, abs(aux2.item()))
    for a, b in zip(grads, grads2, strict=True):
        close(a, b, 10 * limit if dtype == torch.float32 else 2 * limit)


@pytest.mark.parametrize("tokens", [1, 8, 100, 1000])
def test_the_fast_kernels_are_within_rounding(tokens):
    torch.manual_seed(tokens)
    layer = wide(**BALANCE)
    reference = MoeLayer(256, 128, 16, 4, 2, **BALANCE)
    reference.load_state_dict(layer.state_dict())
    x = draw(tokens)
    dy = torch.randn_like(x)
    got = step(layer, x, dy)
    for a, b in zip(got, step(reference, x.detach().cpu().float().requires_grad_(), dy.cpu().float()), strict=True):
        close(a.cpu(), b, 4e-2)
    assert same(got, step(layer, x, dy))  # the same bits each time
    with torch.no_grad():
        assert torch.equal(layer(x), got[0])  # and without gradients
        assert torch.equal(layer(x[: tokens // 2 + 1]), got[0][: tokens // 2 + 1])  # and in another batch


def test_a_call_launches_on_torchs_stream_and_nothing_waits():
    layer, x = wide(**BALANCE), draw(64)
    dy = torch.randn_like(x)
    expected = step(layer, x, dy)
    stream, source = torch.cuda.Stream(), x.detach().clone()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        late = torch.zeros_like(source)
        torch.cuda._sleep(2_000_000_000)  # a second: what follows can only be right behind it
        late.copy_(source)
        late.requires_grad_()
        began = time.perf_counter()
        got = step(layer, late, dy)
        took = time.perf_counter() - began
        asleep = not stream.query()
    torch.cuda.synchronize()
    assert asleep and took < 0.5
    assert same(got, expected)


def test_weights_and_tokens_are_not_copied():
    layer, x = wide(), draw(8, grad=False)
    with torch.no_grad():
        y = layer(x)
        held = torch.cuda.memory_allocated()
        layer(x)
        assert torch.cuda.memory_allocated() == held  # torch itself allocated nothing
        layer.down.mul_(2)  # in place: the next call sees it
        assert torch.equal(layer(x), 2 * y)


def test_the_weights_may_change_right_after_a_call():
    layer, x = wide(), draw(2000, grad=False)
    with torch.no_grad():
        y = layer(x)
        kept = y.clone()
        layer.down.zero_()  # on the same stream, so after the call
    assert torch.equal(y, kept) and kept.abs().sum() > 0


def graph_of(work):
    """A CUDA graph of work(), which ran before on the capture's stream, and what it returned. On that very stream: the last call's
    aux_loss keeps its graph, whose gradients are added up on the stream that it was made on."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            work()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        out = work()
    return graph, out


@pytest.mark.parametrize("tokens", [1, 64, 1000])
def test_a_forward_pass_in_a_cuda_graph(tokens):
    layer, x = wide(), draw(tokens, grad=False)
    with torch.no_grad():
        graph, y = graph_of(lambda: layer(x))
        for seed in range(3):
            x.copy_(torch.randn(x.shape, generator=torch.Generator().manual_seed(seed)))
            graph.replay()
            assert torch.equal(y, layer(x))


@pytest.mark.parametrize("config", [{}, BALANCE, dict(attach_aux_loss=True, **BALANCE)], ids=["plain", "balance", "attached"])
def test_a_training_step_in_a_cuda_graph(config):
    layer, x = wide(**config), draw(2, 32)
    dy = torch.randn_like(x)
    graph, out = graph_of(lambda: step(layer, x, dy))
    for seed in range(3):
        with torch.no_grad():
            x.copy_(torch.randn(x.shape, generator=torch.Generator().manual_seed(seed)))
        graph.replay()
        assert same(out, step(layer, x, dy))


def test_make_graphed_callables():
    layer, other, x = wide(), wide(), draw(64)
    graphed = torch.cuda.make_graphed_callables(layer, (draw(64),))
    graphed(x).square().sum().backward()
    x2 = x.detach().requires_grad_()
    other(x2).square().sum().backward()
    assert torch.equal(x.grad, x2.grad)
    assert same([p.grad for p in graphed.parameters()], [p.grad for p in other.parameters()])


def test_a_graph_gives_its_memory_back():
    layer, x = wide(), draw(4000, grad=False)
    places = set()
    for _ in range(40):
        with torch.no_grad():
            graph, y = graph_of(lambda: layer(x))
        places.add(y.data_ptr())
        graph.replay()
        torch.cuda.synchronize()
        del graph, y
    assert len(places) < 20


def test_autocast():
    layer, x = make().cuda(), draw(3, 5, width=32, dtype=torch.float32)
    for asked in (torch.bfloat16, torch.float16):
        with torch.autocast("cuda", dtype=asked):
            y = layer(x)
        assert y.dtype == asked
        y.float().sum().backward()
        assert layer.down.grad.dtype == torch.float32 and x.grad.dtype == torch.float32
        close(y, layer(x), 2e-2)


def test_gradient_checkpointing():
    from torch.utils.checkpoint import checkpoint

    layer, x = wide(**BALANCE), draw(2, 16)
    dy = torch.randn_like(x)
    expected = step(layer, x, dy)
    y, aux = checkpoint(lambda t: (layer(t), layer.aux_loss), x, use_reentrant=False)
    assert same(expected[1:], torch.autograd.grad((y * dy).sum() + 2 * aux, [x, *layer.parameters()]))


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compile_gives_the_same_bits(backend):
    layer, x = wide(**BALANCE), draw(2, 16)
    compiled = torch.compile(lambda t: (layer(t) * 2, layer.aux_loss), backend=backend, fullgraph=True)
    y, aux = compiled(x)
    got = torch.autograd.grad(y.sum() + aux, [x, *layer.parameters()])
    assert same(got, torch.autograd.grad((layer(x) * 2).sum() + layer.aux_loss, [x, *layer.parameters()]))
    with torch.no_grad():
        assert torch.equal(torch.compile(layer, backend=backend)(x), layer(x))


def test_threads_and_streams_may_share_a_layer():
    import threading

    layer, x = wide(), draw(300, grad=False)
    with torch.no_grad():
        expected = layer(x)
    torch.cuda.synchronize()
    got = []

    def work():
        with torch.cuda.stream(torch.cuda.Stream()), torch.no_grad():
            for _ in range(20):
                got.append(torch.equal(layer(x), expected))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert got == [True] * 60


def test_what_a_kernel_finds_is_raised_by_synchronize():
    layer, x = wide(layer_index=3), draw(5, grad=False)
    with torch.no_grad():
        x[2, 7] = float("nan")
        layer(x)
        with pytest.raises(dsmoe.Error, match="layer 3.*token 2"):
            dsmoe.torch.synchronize()
        dsmoe.torch.synchronize()  # said once
        x[2, 7] = 0
        layer(x)
        dsmoe.torch.synchronize()


def test_what_does_not_fit_is_refused():
    layer = wide()
    with pytest.raises(dsmoe.Error, match="x on the CPU|x is on|on cuda:0 and x on the CPU"):
        layer(torch.randn(4, 256).bfloat16())
    unaligned = torch.zeros(4 * 256 + 1, device="cuda", dtype=torch.bfloat16)[1:].view(4, 256)
    with pytest.raises(dsmoe.Error, match="16 bytes"):
        layer(unaligned)


def test_sequences_shapes_and_strides():
    layer, x = wide(), draw(2, 3, 4)
    assert torch.equal(layer(x), layer(x.flatten(0, 2)).reshape(x.shape))
    turned = draw(5, 6).transpose(0, 1)
    assert torch.equal(layer(turned), layer(turned.contiguous()))
    assert layer(draw(0)).shape == (0, 256)


def test_ten_thousand_calls_leave_nothing():
    from test_calls import LIMIT, leaks

    layer, x = wide(**BALANCE), draw(4)
    dy = torch.randn_like(x)
    step(layer, x, dy)
    torch.cuda.synchronize()
    free = torch.cuda.mem_get_info()[0]
    assert leaks(lambda: step(layer, x, dy), 10_000) < LIMIT
    torch.cuda.synchronize()
    assert free - torch.cuda.mem_get_info()[0] < LIMIT
    layer.aux_loss = None
    gc.collect()
    assert _core.waiting_passes() == 0


def test_distributed_data_parallel(tmp_path):
    if not torch.distributed.is_nccl_available():
        pytest.skip("this torch has no NCCL")
    torch.distributed.init_process_group("nccl", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        layer, other, x = wide(), wide(), draw(64)
        model = torch.nn.parallel.DistributedDataParallel(layer, device_ids=[0])
        for m in (model, other):
            m(x).square().sum().backward()
        assert same([p.grad for p in layer.parameters()], [p.grad for p in other.parameters()])
    finally:
        torch.distributed.destroy_process_group()


def test_a_replaced_block_of_transformers():
    transformers = pytest.importorskip("transformers")
    config = transformers.DeepseekV3Config(
        vocab_size=128, hidden_size=64, intermediate_size=96, moe_intermediate_size=32, num_hidden_layers=2, n_routed_experts=8,
        num_attention_heads=2, num_key_value_heads=2, n_shared_experts=1, num_experts_per_tok=2, first_k_dense_replace=1,
        n_group=2, topk_group=1, q_lora_rank=16, kv_lora_rank=16, qk_rope_head_dim=16, v_head_dim=16, qk_nope_head_dim=16,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.DeepseekV3ForCausalLM(config).cuda().eval()
    ids = torch.randint(0, 128, (2, 16), device="cuda")
    with torch.no_grad():
        before = model(ids).logits
        report = dsmoe.torch.replace(model)
        assert len(report.replaced) == 1, report
        close(model(ids).logits, before, 1e-3)
