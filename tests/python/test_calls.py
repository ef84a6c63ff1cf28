"""How calls behave: Ctrl-C, the interpreter lock, and what they leave behind."""

import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest

import dsmoe
from dsmoe import _core

# Each works for minutes, unless it is ended.
LONG = {
    "generate": "list(model.generate([1], max_tokens=10**6, ignore_eos=True, context=10**6, stream=True))",
    "session": "model.generate([1], max_tokens=10**6, ignore_eos=True, context=10**6)",
    "batch": "model.generate([[1]] * 8, max_tokens=10**6, ignore_eos=True, context=10**5)",
    "prompt": "model.generate([1] * 500_000, max_tokens=1, context=10**6)",
    "prompt of a stream": "next(model.generate([1] * 500_000, max_tokens=1, context=10**6, stream=True))",
    "logits": "model.loss([1] * 500_000)",
    "train": "dsmoe.train(sys.argv[1], steps=10**6, batch_size=2, seq_len=32, eval_every=0, save_every=0, on_step=lambda s: ctrl_c())",
}


@pytest.mark.parametrize("call", LONG)
def test_ctrl_c_ends_a_long_call(call, tmp_path):
    script = textwrap.dedent(f"""
        import json, os, signal, sys, threading
        import dsmoe
        # A shell may start background work with SIGINT ignored.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        config = dict(json.loads(dsmoe._core.preset_json("tiny")), max_position_embeddings=10**6)
        model = dsmoe.Model.random(config, threads=1)
        def ctrl_c():
            os.kill(os.getpid(), signal.SIGINT)
        try:
            if {call != "train"}:  # where a step is under way is known
                threading.Timer(1.0, ctrl_c).start()
            {LONG[call]}
        except KeyboardInterrupt:
            print("interrupted")
    """)
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path / "run")], capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.returncode) == ("interrupted\n", 0), done.stderr
    if call == "train":
        assert dsmoe.Model(tmp_path / "run").dtype == "f32"


RELEASING = {
    "loss": lambda model, tmp: model.loss(list(range(1, 400))),
    "Tokenizer.load": lambda model, tmp: dsmoe.Tokenizer.load(model.path),
    "encode": lambda model, tmp: model.tokenizer.encode("some text and more of it " * 4000),
    "decode": lambda model, tmp: model.tokenizer.decode(np.arange(1, 100, dtype=np.int32).repeat(1000)),
    "Tokenizer.save": lambda model, tmp: model.tokenizer.save(tmp, overwrite=True),
    "plan": lambda model, tmp: _core.plan({"preset": "deepseek-moe-16b"}),
}


def others_run_during(call):
    """Whether another thread runs Python code while this one is inside a call; a short one may be over too soon, so not in
    each."""
    count, stop = 0, threading.Event()

    def count_up():
        nonlocal count
        while not stop.is_set():
            count += 1
            time.sleep(0)

    thread = threading.Thread(target=count_up)
    switch = sys.getswitchinterval()
    sys.setswitchinterval(60)  # nothing but a release lets the other thread in
    try:
        thread.start()
        before, calls = count, 0
        while count == before and calls < 1000:
            call()
            calls += 1
        return count > before
    finally:
        stop.set()
        sys.setswitchinterval(switch)
        thread.join()


@pytest.mark.parametrize("call", RELEASING)
def test_the_lock_is_released_while_working(call, model, tmp_path):
    assert others_run_during(lambda: RELEASING[call](model, tmp_path))


def test_the_check_of_the_lock_can_fail(model):
    assert not others_run_during(lambda: [model.tokenizer.piece(i) for i in range(100)])


def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def leaks(call, times):
    """Bytes that the process has grown by over many calls, after enough of them to fill caches."""
    for _ in range(times // 10):
        call()
    gc.collect()
    before = resident()
    for _ in range(times):
        call()
    gc.collect()
    return resident() - before


LIMIT = 8 << 20  # of 10,000 calls: under a kilobyte each. The least that a call could leave, its arrays, is more.


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="needs /proc")
def test_ten_thousand_calls_leave_nothing(model):
    ids = np.arange(1, 9, dtype=np.int32)
    x = np.ones((8, 16), np.float32)
    config = _core.MoeConfig(hidden_size=16, expert_size=8, routed_experts=4, experts_per_token=2)
    weights = [np.ones(s, np.float32) for s in ((4, 16), (4, 2, 8, 16), (4, 16, 8))]

    def refused():
        with pytest.raises(dsmoe.Error):
            dsmoe.plan("no such preset")

    def layer():
        _core.layer_forward(config, x, weights[0], None, weights[1], weights[2], True, True, 0, 1)

    for call in (
        lambda: model.tokenizer.decode(model.tokenizer.encode("some text")),
        lambda: dsmoe.plan(experts=16, active=2),
        layer,
        refused,
    ):
        assert leaks(call, 10_000) < LIMIT
    assert _core.waiting_passes() == 0
    small = dsmoe.Model.random({**model.config, "num_hidden_layers": 1, "vocab_size": 600}, threads=1)
    assert leaks(lambda: small.logits(ids), 10_000) < LIMIT


def test_the_leak_check_can_fail():
    kept = []
    assert leaks(lambda: kept.append(np.ones(1024, np.float32)), 10_000) > LIMIT
