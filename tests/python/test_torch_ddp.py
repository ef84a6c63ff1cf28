"""DistributedDataParallel over gloo: two processes get the gradients of one that has both halves of the batch."""

import pytest

torch = pytest.importorskip("torch")
if not torch.distributed.is_available():
    pytest.skip("this torch has no distributed package", allow_module_level=True)

import torch.multiprocessing as mp  # noqa: E402

from dsmoe.torch import MoeLayer  # noqa: E402


def make():
    torch.manual_seed(0)
    return MoeLayer(16, 8, 4, 2, 1, batch_balance_alpha=0.1)


def batch():
    return torch.randn(2, 6, 16, generator=torch.Generator().manual_seed(1))


def loss_of(model, layer, x):
    return model(x).square().mean() + layer.aux_loss


def work(rank, store, out):
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    layer = make()
    model = torch.nn.parallel.DistributedDataParallel(layer)
    loss_of(model, layer, batch()[rank]).backward()
    if rank == 0:
        torch.save({name: p.grad for name, p in layer.named_parameters()}, out)
    torch.distributed.destroy_process_group()


def test_two_processes(tmp_path, monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    mp.spawn(work, (str(tmp_path / "store"), str(tmp_path / "grads")), nprocs=2)
    layer = make()
    sum(loss_of(layer, layer, x) / 2 for x in batch()).backward()
    together = torch.load(tmp_path / "grads")
    for name, p in layer.named_parameters():
        assert torch.allclose(p.grad, together[name], rtol=1e-5, atol=1e-7), name
