#!/usr/bin/env python3
"""Asks a server with LangChain's client for OpenAI's API. Run by peer_test.cpp.

  check_with_langchain.py URL URL

The model of the second knows the characters of JSON and of calls, and the words of the schemas below.
Exit status: 0 right, 1 wrong, 77 the package langchain_openai is not installed.
"""
import os
import sys

os.environ["LANGSMITH_TRACING"] = "false"
try:
    from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI
    from pydantic import BaseModel
except ImportError as error:
    print(f"not installed: {error}")
    sys.exit(77)


def chat(url, **options):
    return ChatOpenAI(base_url=url + "/v1", api_key="any", model="small", max_retries=0, **options)


words = chat(sys.argv[1], max_tokens=8, seed=3, extra_body={"ignore_eos": True})
whole = words.invoke("HELLO")
assert len(whole.content) == 8 and whole.usage_metadata["output_tokens"] == 8, whole
assert "".join(part.content for part in words.stream("HELLO")) == whole.content
assert [a.content for a in words.batch(["HELLO", "HELLO"])] == [whole.content] * 2


class Found(BaseModel):
    ok: bool
    num: int


@tool
def add(a: int) -> int:
    """Adds."""
    return a + 1


with_json = chat(sys.argv[2], max_tokens=400, seed=1)
assert isinstance(with_json.with_structured_output(Found, method="json_schema").invoke("0"), Found)
assert isinstance(with_json.with_structured_output(Found, method="function_calling").invoke("0"), Found)
calls = with_json.bind_tools([add], tool_choice="required", parallel_tool_calls=False)
answer = calls.invoke("0")
assert [c["name"] for c in answer.tool_calls] == ["add"] and isinstance(answer.tool_calls[0]["args"]["a"], int), answer
streamed = None
for part in calls.stream("0"):
    streamed = part if streamed is None else streamed + part
assert [(c["name"], c["args"]) for c in streamed.tool_calls] == [(c["name"], c["args"]) for c in answer.tool_calls], streamed
result = ToolMessage(str(add.invoke(answer.tool_calls[0]["args"])), tool_call_id=answer.tool_calls[0]["id"])
last = chat(sys.argv[2], max_tokens=3).bind_tools([add], tool_choice="none").invoke([HumanMessage("0"), answer, result])
assert isinstance(last, AIMessage) and not last.tool_calls, last
print("LangChain understands the server")
