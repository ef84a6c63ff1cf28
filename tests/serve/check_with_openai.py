#!/usr/bin/env python3
"""Asks a server with OpenAI's own Python client, and reads its metrics with Prometheus' own parser. Run by peer_test.cpp.

  check_with_openai.py URL URL

The model of the second knows the characters of JSON and of calls, and the words of the schemas below.

Exit status: 0 right, 1 wrong, 77 the packages openai and prometheus_client are not installed.
"""
import json
import sys
import urllib.request
from typing import Literal

try:
    import openai
    import pydantic
    from prometheus_client.parser import text_string_to_metric_families
except ImportError as error:
    print(f"not installed: {error}")
    sys.exit(77)

url = sys.argv[1]
client = openai.OpenAI(base_url=url + "/v1", api_key="any", max_retries=0)
model = client.models.list().data[0].id
assert client.models.retrieve(model).id == model
messages = [{"role": "user", "content": "HELLO"}]
options = {"model": model, "messages": messages, "max_tokens": 8, "seed": 3, "extra_body": {"ignore_eos": True}}

whole = client.chat.completions.create(**options)
assert whole.choices[0].finish_reason == "length" and whole.usage.completion_tokens == 8, whole
text = ""
usage = None
for chunk in client.chat.completions.create(stream=True, stream_options={"include_usage": True}, **options):
    if chunk.choices:
        text += chunk.choices[0].delta.content or ""
    usage = chunk.usage or usage
assert text == whole.choices[0].message.content, (text, whole)
assert usage.completion_tokens == 8

with_logprobs = client.chat.completions.create(logprobs=True, top_logprobs=3, n=2, **options)
assert len(with_logprobs.choices) == 2
assert len(with_logprobs.choices[0].logprobs.content[0].top_logprobs) == 3
assert with_logprobs.choices[0].message.content == text

legacy = client.completions.create(model=model, prompt="HELLO", max_tokens=4, logprobs=2, echo=True, seed=1)
assert legacy.choices[0].text.startswith("HELLO") and legacy.choices[0].logprobs.token_logprobs[0] is None

within = client.completions.create(model=model, prompt="HELLO", seed=1, extra_body={"grammar": 'root ::= "YES" | "NO"'})
assert within.choices[0].text in ("YES", "NO") and within.choices[0].finish_reason == "stop"

vectors = client.embeddings.create(model=model, input=["HELLO", "WORLD"])  # asks for base64
floats = client.embeddings.create(model=model, input=["HELLO", "WORLD"], encoding_format="float")
assert vectors.data[1].embedding == floats.data[1].embedding

for kind, change in [
    (openai.NotFoundError, {"model": "other"}),
    (openai.BadRequestError, {"temperature": -1}),
    (openai.BadRequestError, {"messages": []}),
    (openai.BadRequestError, {"response_format": {"type": "xml"}}),
]:
    try:
        client.chat.completions.create(**{**options, **change})
        raise SystemExit(f"{change} was not refused")
    except kind as error:
        assert error.body["message"], error

# Structured output and tools.
with_json = openai.OpenAI(base_url=sys.argv[2] + "/v1", api_key="any", max_retries=0)


class Found(pydantic.BaseModel):
    ok: bool
    num: int


class Cut(pydantic.BaseModel):
    a: Literal["foo", "dot"]


some = {"model": model, "messages": [{"role": "user", "content": "0"}], "max_tokens": 400}
parsed = with_json.chat.completions.parse(response_format=Found, seed=1, **some).choices[0].message
assert isinstance(parsed.parsed, Found), parsed
any_object = with_json.chat.completions.create(response_format={"type": "json_object"}, seed=2, **some).choices[0]
assert any_object.finish_reason == "length" or isinstance(json.loads(any_object.message.content), dict)

tools = [openai.pydantic_function_tool(Cut, name="cut"),
         {"type": "function", "function": {"name": "add", "strict": True, "parameters": {
             "type": "object", "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 9}}, "required": ["a"],
             "additionalProperties": False}}}]
for seed in range(4):
    called = with_json.chat.completions.parse(tools=tools, tool_choice="required", seed=seed, **some).choices[0]
    assert called.finish_reason == "tool_calls" and called.message.content is None, called
    for call in called.message.tool_calls:
        arguments = json.loads(call.function.arguments)
        assert arguments["a"] in ("foo", "dot") if call.function.name == "cut" else 0 <= arguments["a"] <= 9, call
        if call.function.name == "cut":
            assert isinstance(call.function.parsed_arguments, Cut), call
    with with_json.chat.completions.stream(tools=tools, tool_choice="required", seed=seed, **some) as stream:
        for _ in stream:
            pass
        final = stream.get_final_completion().choices[0]
    same = lambda calls: [(c.function.name, c.function.arguments) for c in calls]
    assert same(final.message.tool_calls) == same(called.message.tool_calls), (final, called)
    # What was called, and what it returned, go back.
    calls = [{"id": c.id, "type": "function", "function": {"name": c.function.name, "arguments": c.function.arguments}}
             for c in called.message.tool_calls]
    talk = some["messages"] + [{"role": "assistant", "content": None, "tool_calls": calls}]
    talk += [{"role": "tool", "tool_call_id": call.id, "content": "7"} for call in called.message.tool_calls]
    again = with_json.chat.completions.create(**{**some, "messages": talk, "tools": tools, "tool_choice": "none", "max_tokens": 3})
    assert not again.choices[0].message.tool_calls, again
named = with_json.chat.completions.create(tools=tools, tool_choice={"type": "function", "function": {"name": "add"}},
                                          parallel_tool_calls=False, **some).choices[0].message.tool_calls
assert [c.function.name for c in named] == ["add"], named
try:
    with_json.chat.completions.create(tools=[{"type": "function", "function": {"name": "no spaces please"}}], **some)
    raise SystemExit("a bad name was not refused")
except openai.BadRequestError as error:
    assert error.param == "tools[0]" and "no spaces please" in error.body["message"], error

metrics = {f.name: f for f in text_string_to_metric_families(urllib.request.urlopen(url + "/metrics").read().decode())}
assert metrics["dsmoe_generated_tokens"].samples[0].value > 8
assert metrics["dsmoe_time_to_first_token_seconds"].type == "histogram"
print("all as expected")
