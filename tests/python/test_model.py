"""The model: the same as the program's own output, bit for bit."""

import gc
import json
import subprocess
import sys
import threading

import numpy as np
import pytest

import dsmoe


def test_generates_what_the_program_generates(model, folder, program):
    text = "Once upon a time"
    for options, flags in (
        ({"temperature": 0}, ("--temp", 0)),
        ({"temperature": 0.9, "seed": 7, "top_k": 20}, ("--temp", 0.9, "--seed", 7, "--top-k", 20)),
    ):
        expected = program("generate", "-m", folder, "-p", text, "-n", 24, *flags)
        got = model.generate(text, max_tokens=24, **options)
        assert got.ids.tolist() == expected["ids"]
        assert got.text == expected["text"]
        assert got.finish == expected["finish"]
        assert got.prompt_tokens == expected["prompt_tokens"]
        assert got.ids.dtype == np.int32


def test_text_and_ids_are_the_same_prompt(model):
    ids = model.tokenizer.encode("Once upon a time", add_eos=False)
    a = model.generate("Once upon a time", max_tokens=8, seed=1)
    for form in (ids, ids.tolist(), tuple(ids.tolist()), ids.astype(np.int64)):
        assert model.generate(form, max_tokens=8, seed=1).text == a.text
    assert model.generate("Once upon a time", max_tokens=8, seed=2).ids.tolist() != a.ids.tolist()  # the control


def test_a_text_that_goes_on_has_no_second_bos(model):
    tokenizer = model.tokenizer
    first, more = tokenizer.encode("Once", add_eos=False), tokenizer.encode(" upon", add_bos=False, add_eos=False)
    assert first[0] == tokenizer.bos_id and more[0] != tokenizer.bos_id
    session = model.session(context=128)
    session.generate("Once", max_tokens=0)
    assert session.history.tolist() == first.tolist()
    session.generate(" upon", max_tokens=0)
    assert session.history.tolist() == [*first, *more]
    session.rewind(0)  # the beginning again
    list(session.generate("Once", max_tokens=0, stream=True))
    assert session.history.tolist() == first.tolist()


def test_a_stream_is_the_whole_text_in_pieces(model):
    whole = model.generate("Once", max_tokens=16, seed=3)
    stream = model.generate("Once", max_tokens=16, seed=3, stream=True)
    pieces = list(stream)
    assert "".join(p.text for p in pieces) == whole.text
    assert [p.id for p in pieces if p.id >= 0] == whole.ids.tolist()
    assert stream.result.finish == whole.finish
    assert list(stream) == []


def test_a_stream_that_is_closed_ends(model):
    with model.generate("Once", max_tokens=500, temperature=0, ignore_eos=True, stream=True, context=600) as stream:
        next(stream)
    assert not stream._thread.is_alive()
    assert stream.result.finish == "stop" and len(stream.result.ids) < 500


def test_a_stream_that_is_closed_in_its_prompt_ends():
    config = dict(json.loads(dsmoe._core.preset_json("tiny")), max_position_embeddings=10**6)
    session = dsmoe.Model.random(config, threads=1).session(context=10**6)
    session.generate([1, 2], max_tokens=0)
    stream = session.generate([1] * 500_000, max_tokens=1, stream=True)  # minutes
    stream.close()
    assert not stream._thread.is_alive() and stream.result is None and list(stream) == []
    assert session.history.tolist() == [1, 2]  # and it may be used again
    assert len(list(session.generate([3], max_tokens=2, ignore_eos=True, stream=True))) >= 2


def test_a_stream_that_is_forgotten_ends(model):
    stream = model.generate("Once", max_tokens=10**6, temperature=0, ignore_eos=True, stream=True, context=10**5)
    next(stream)
    thread = stream._thread
    del stream
    gc.collect()
    assert not thread.is_alive()


def test_the_interpreter_may_end_in_the_middle_of_a_stream():
    code = (
        "import dsmoe; m = dsmoe.Model.random('tiny', threads=1)\n"
        "s = m.generate([1], max_tokens=10**6, ignore_eos=True, stream=True, context=10**5); next(s)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_streams_error_reaches_who_iterates(model):
    with pytest.raises(dsmoe.Error, match="temp"):
        list(model.generate("Once", temperature=-1, stream=True))


def test_a_batch_gives_what_each_prompt_gets_alone(model):
    prompts = ["Once upon", [5, 6, 7], np.array([9])]
    together = model.generate(prompts, max_tokens=10, seed=5)
    for prompt, got in zip(prompts, together):
        assert got.ids.tolist() == model.generate(prompt, max_tokens=10, seed=5).ids.tolist()
    assert model.generate([[1]], max_tokens=2)[0].ids.size == 2


def test_logits_and_loss_agree(model, folder, program, tmp_path):
    ids = list(range(3, 40))
    logits = model.logits(ids)
    assert logits.shape == (37, model.config["vocab_size"]) and logits.dtype == np.float32
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=1, keepdims=True)
    log_p = wide - np.log(np.exp(wide).sum(axis=1, keepdims=True))
    by_hand = -np.mean([log_p[t, ids[t + 1]] for t in range(36)])
    assert abs(model.loss(ids) - by_hand) < 1e-5
    file = tmp_path / "text.ids"
    file.write_text(" ".join(map(str, ids)) + "\n")
    assert model.loss(ids) == program("eval", "-m", folder, "--data", file)["loss"]
    assert model.evaluate(file).loss == model.loss(ids)
    assert model.loss([ids, ids[:5]]) != model.loss(ids)


def test_results_do_not_depend_on_threads(folder, model):
    one = dsmoe.Model(folder, threads=1)
    assert one.logits([1, 2, 3]).tobytes() == model.logits([1, 2, 3]).tobytes()


def test_routing_is_what_the_program_reports(model, folder, program):
    ids = [4, 8, 15, 16, 23, 42]
    found = model.routing(ids)
    expected = program("generate", "-m", folder, "--ids", ",".join(map(str, ids)), "-n", 0, "--routing")["routing"]
    assert found.layers.tolist() == [r["layer"] for r in expected]
    for i, r in enumerate(expected):
        assert found.experts[i].tolist() == r["experts"]
        assert found.weights[i].tolist() == [[pytest.approx(w, rel=1e-6) for w in row] for row in r["weights"]]
    layers, tokens, chosen = found.experts.shape
    assert found.load().sum() == layers * tokens * chosen
    assert found.load().shape == (layers, model.config["n_routed_experts"])


def test_overrides(model):
    ids = [4, 8, 15, 16]
    plain, changed = model.routing(ids), model.routing(ids, overrides=dsmoe.Overrides(skip_best=1))
    best, k = plain.experts[0, :, 0], plain.experts.shape[2]
    assert not any(b in row for b, row in zip(best, changed.experts[0]))
    assert model.loss(ids, overrides={"experts_per_token": k - 1}) != model.loss(ids)
    assert model.routing(ids, overrides={"experts_per_token": 2}).experts.shape[2] == 2
    layer, expert = int(plain.layers[0]), int(best[0])
    assert expert not in model.routing(ids, overrides={"disabled": [(layer, expert)]}).experts[0]
    for dense in (0, 99):
        with pytest.raises(dsmoe.Error, match="not a MoE layer"):
            model.loss(ids, overrides={"disabled": [(dense, expert)]})
    a = model.generate(ids, max_tokens=8, temperature=0)
    b = model.generate(ids, max_tokens=8, temperature=0, overrides={"skip_best": 3})
    assert model.generate([ids], max_tokens=8, temperature=0, overrides={"skip_best": 3})[0].ids.tolist() == b.ids.tolist()
    assert a.ids.tolist() != b.ids.tolist()
    with pytest.raises(dsmoe.Error, match="expert"):
        model.loss(ids, overrides={"skip_best": 10000})
    with pytest.raises(TypeError, match="sharp"):
        model.loss(ids, overrides={"sharp": 1})


def test_a_session_keeps_what_was_said(model):
    session = model.session(context=128)
    first = session.generate("Once upon", max_tokens=4, temperature=0, ignore_eos=True)
    length = len(session.history)
    second = session.generate([5, 6], max_tokens=4, temperature=0, ignore_eos=True)
    assert session.context == 128 and len(session.history) > length
    session.rewind(0)
    assert len(session.history) == 0
    assert session.generate("Once upon", max_tokens=4, temperature=0, ignore_eos=True).ids.tolist() == first.ids.tolist()
    assert second.prompt_tokens == 2
    with pytest.raises(dsmoe.Error, match="rewind"):
        session.rewind(1000)


def test_chat(model):
    assert model.tokenizer.chat_template
    session, talk = model.session(context=256), [{"role": "user", "content": "Hello"}]
    first = session.chat(talk, max_tokens=4, temperature=0, ignore_eos=True)
    assert first.prompt_tokens > 1
    talk += [{"role": "assistant", "content": first.text}, {"role": "user", "content": "Why?"}]
    second = session.chat(talk, max_tokens=4, seed=1)
    assert second.prompt_tokens < len(session.history)  # what was in the cache already did not run again
    assert "".join(p.text for p in session.chat(talk, max_tokens=4, seed=1, stream=True)) == second.text
    with pytest.raises(dsmoe.Error, match="no tokenizer"):
        dsmoe.Model.random("tiny").session(context=64).chat(talk)


def test_structured_output(model):
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}
    for got in (model.generate("x", json_schema=schema), *model.generate(["x", "y"], json_schema=schema)):
        assert json.loads(got.text)["a"] in (1, 2)
    assert model.generate("x", grammar='root ::= "yes" | "no"').text in ("yes", "no")


def test_the_tokenizer(model):
    ids = model.tokenizer.encode("Füße 🙂")
    assert ids.dtype == np.int32
    assert model.tokenizer.decode(ids, skip_special=True) == "Füße 🙂"
    assert 0 < model.tokenizer.vocab_size <= model.config["vocab_size"]
    for same in (ids.tolist(), tuple(ids.tolist()), ids.astype(np.int64)):
        assert model.tokenizer.decode(same) == model.tokenizer.decode(ids)
    assert model.tokenizer.decode([]) == ""
    for wrong in ([1.5], np.array([1.0]), [[1]], "1"):
        with pytest.raises(TypeError, match="whole numbers"):
            model.tokenizer.decode(wrong)
    with pytest.raises(ValueError, match="32 bits"):
        model.tokenizer.decode([2**40])


def test_errors_are_exceptions_with_the_librarys_message(model, tmp_path):
    with pytest.raises(dsmoe.Error, match="there is no model") as caught:
        dsmoe.Model(tmp_path / "nothing")
    assert caught.value.code == "input/output" and isinstance(caught.value, RuntimeError)
    with pytest.raises(dsmoe.Error, match="vocabulary|token"):
        model.logits([10**6])
    with pytest.raises(dsmoe.Error, match="temp"):
        model.generate("x", temperature=-1)
    with pytest.raises(dsmoe.Error, match="device .*choose"):
        dsmoe.Model(model.path, device="abacus")
    with pytest.raises(TypeError, match="no option"):
        model.generate("x", colour=1)
    with pytest.raises(TypeError, match="top_k"):
        model.generate("x", top_k="many")
    with pytest.raises(TypeError, match="whole numbers"):
        model.generate([0.5])
    with pytest.raises(ValueError, match="32 bits"):
        model.generate([2**40])


def test_a_tokenizer_is_saved_over_another_only_when_asked(model, tmp_path):
    out = tmp_path / "t"
    model.tokenizer.save(out)
    assert dsmoe.Tokenizer.load(out).encode("text").tolist() == model.tokenizer.encode("text").tolist()
    names = {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja"}  # all that saving may write or remove
    assert {f.name for f in out.iterdir()} <= names
    for name in names:
        mine = tmp_path / f"only {name}"
        mine.mkdir()
        (mine / name).write_text("mine")
        with pytest.raises(dsmoe.Error, match=f"{name} already exists.*overwrite"):
            model.tokenizer.save(mine)
        assert [(f.name, f.read_text()) for f in mine.iterdir()] == [(name, "mine")]
    model.tokenizer.save(mine, overwrite=True)
    assert {f.name: f.read_bytes() for f in mine.iterdir()} == {f.name: f.read_bytes() for f in out.iterdir()}


def test_a_model_without_a_tokenizer_takes_ids():
    model = dsmoe.Model.random("tiny", seed=1, threads=1)
    assert model.generate([1, 2], max_tokens=3).text == ""
    with pytest.raises(dsmoe.Error, match="no tokenizer"):
        model.generate("text")


def test_saves_and_loads(tmp_path):
    model = dsmoe.Model.random("tiny", seed=1)
    model.save(tmp_path / "m")
    assert dsmoe.Model(tmp_path / "m").logits([1, 2]).tobytes() == model.logits([1, 2]).tobytes()
    with pytest.raises(dsmoe.Error, match="already holds a model"):
        model.save(tmp_path / "m")
    model.save(tmp_path / "m", overwrite=True)


def test_threads_may_share_a_model(model):
    expected = model.logits([1, 2, 3]).tobytes()
    got = []
    threads = [threading.Thread(target=lambda: got.append(model.logits([1, 2, 3]).tobytes())) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert got == [expected] * 4


def test_a_session_says_that_it_is_for_one_thread(model):
    session = model.session(context=256)
    told = []

    def on_piece(*_):
        try:
            session.generate([1], max_tokens=1)
        except dsmoe.Error as error:
            told.append(str(error))
        return False

    session.generate([1, 2], max_tokens=2, on_piece=on_piece)
    assert "another thread" in told[0]
    assert session.generate([3], max_tokens=1).ids.size == 1
