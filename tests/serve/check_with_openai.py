#!/usr/bin/env python3
"""Asks a server with OpenAI's own Python client, and reads its metrics with Prometheus' own parser. Run by peer_test.cpp.

  check_with_openai.py URL

Exit status: 0 right, 1 wrong, 77 the packages openai and prometheus_client are not installed.
"""
import sys
import urllib.request

try:
    import openai
    from prometheus_client.parser import text_string_to_metric_families
except ImportError as error:
    print(f"not installed: {error}")
    sys.exit(77)

url = sys.argv[1]
client = openai.OpenAI(base_url=url + "/v1", api_key="any", max_retries=0)
model = client.models.list().data[0].id
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

metrics = {f.name: f for f in text_string_to_metric_families(urllib.request.urlopen(url + "/metrics").read().decode())}
assert metrics["dsmoe_generated_tokens"].samples[0].value > 8
assert metrics["dsmoe_time_to_first_token_seconds"].type == "histogram"
print("all as expected")
