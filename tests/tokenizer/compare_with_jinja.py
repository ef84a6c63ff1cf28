#!/usr/bin/env python3
"""Compares chat templates with Jinja itself, set up as Hugging Face sets it up, on random templates.

usage: compare_with_jinja.py TOKENIZER_RENDER_LINES [--templates N] [--seed S]

TOKENIZER_RENDER_LINES is the program built from render_lines.cpp. Exit status 77 (skipped) when jinja2 is not installed.
Where Jinja renders, the same text is expected, or an error that says "not supported".
"""
import argparse
import json
import random
import subprocess
import sys

try:
    from jinja2.exceptions import TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment
except ImportError:
    print("skipped: the Python package jinja2 is not installed")
    sys.exit(77)

CONVERSATIONS = [
    [],
    [{"role": "user", "content": "Hi"}],
    [{"role": "system", "content": " Be kind.\n"}, {"role": "user", "content": "<b>Who?</b>"},
     {"role": "assistant", "content": "\u00e9\u4f60 I."}, {"role": "user", "content": ""}],
]


class Maker:
    """Random templates from a grammar that covers the supported subset, and a little of what lies outside."""

    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.macros = False  # whether f and g are there to be called

    def pick(self, *choices):
        return self.rng.choice(choices)

    def space(self):
        return self.pick("", "", " ", "\n", "  ", "\n  ", " \n", "\t", "\r\n", " x ", "text\n", "{", "}", "%")

    def anything(self, depth):
        return self.pick(self.text, self.text, self.number, self.truth, self.items, self.table, self.odd)(depth)

    def odd(self, depth):
        return self.pick("undefined_name", "none", "tools", "message", "loop", "ns", "messages[9]", "x", "y", "z", "messages[-1]")

    def text(self, depth=2):
        if depth <= 0 or self.rng.random() < 0.3:
            return self.pick("'a'", '"b\\n"', "'it\\'s'", "'\\u00e9x\\x41'", "''", "bos_token", "eos_token", "' Aa b '", "'x' 'y'",
                             "'\\d'", "messages[0].role|d('r')", "message.content", "message['role']", "ns.a", "x")
        kind = self.rng.randrange(16 if self.macros else 14)
        t = lambda: self.text(depth - 1)
        if kind < 2: return f"{t()} + {t()}"
        if kind < 4: return f"{t()} ~ {self.pick(self.text, self.number, self.truth)(depth - 1)}"
        if kind < 6:
            return f"({t()})|" + self.pick("trim", "upper", "lower", "capitalize", "string", "first", "last", "default('d')", "trim('x ')",
                                           "default('d', true)", "d(value)", "replace('a', 'bc')", "tojson", "wordcount")
        if kind < 8:
            return f"({t()})." + self.pick("strip()", "lstrip()", "rstrip('\\n')", "upper()", "lower()", "replace('I', 'you')", "capitalize()",
                                           "strip('')", "zfill(3)")
        if kind == 8: return f"({t()})[{self.pick('0', '-1', '1:', ':1', ':-1', '::-1', '1:2', ':', '-2:', '9', '3:1', '-9:9')}]"
        if kind == 9: return f"{t()} if {self.truth(depth - 1)} else {t()}"
        if kind == 10: return f"{t()} if {self.truth(depth - 1)}"
        if kind == 11: return f"{self.items(depth - 1)}|join({t()})"
        if kind == 12: return f"{self.anything(depth - 1)}|tojson"
        if kind >= 14: return self.pick(f"f({t()})", f"f({t()}, {t()})", f"g(b={t()}, a={self.anything(depth - 1)})", "g()", f"g({t()})|safe")
        return f"({t()})"

    def number(self, depth=2):
        if depth <= 0 or self.rng.random() < 0.4:
            return self.pick("0", "1", "7", "-2", "loop.index0", "loop.index", "loop.length", "loop.revindex", "loop.revindex0", "true", "ns.b",
                             "messages|length")
        n = lambda: self.number(depth - 1)
        return self.pick(f"({n()} {self.pick('+', '-', '*', '//', '%')} {n()})", f"{n()} + {n()} * {n()}", f"-{n()}",
                         f"({self.text(depth - 1)})|{self.pick('length', 'count', 'int', 'int(3)')}", f"{self.items(depth - 1)}|length")

    def truth(self, depth=2):
        if depth <= 0 or self.rng.random() < 0.2:
            return self.pick("true", "False", "add_generation_prompt", "loop.first", "loop.last", "messages", "tools", "not loop.first")
        n, t, b = lambda: self.number(depth - 1), lambda: self.text(depth - 1), lambda: self.truth(depth - 1)
        any_ = lambda: self.anything(depth - 1)
        test = self.pick("defined", "undefined", "none", "string", "number", "integer", "boolean", "true", "false", "mapping", "sequence",
                         "iterable")
        return self.pick(f"{n()} {self.pick('<', '>', '<=', '>=', '==', '!=')} {n()}", f"{t()} {self.pick('==', '!=', '<')} {t()}",
                         f"{any_()} == {any_()}", f"{t()} {self.pick('in', 'not in')} {t()}", f"{any_()} in {self.items(depth - 1)}",
                         f"{t()} in {self.table(depth - 1)}", f"({b()}) and {b()}", f"({b()}) or {b()}", f"not ({b()})",
                         f"({any_()}) is {self.pick('', 'not ')}{test}", f"{n()} is {self.pick('odd', 'even')}",
                         f"({t()}).{self.pick('startswith', 'endswith')}({t()})", f"0 < {n()} <= {n()}", f"not {any_()} is {test}")

    def items(self, depth=2):
        if depth <= 0 or self.rng.random() < 0.4:
            return self.pick("messages", "messages[1:]", "messages[:-1]", "['a', 'b', 1]", "[]", "('a', 'b')", "range(3)", "range(1, 4)", "range(4, -1, -2)",
                             "messages[::-1]", "('a',)", "[loop.index0, 'z',]")
        return self.pick(f"({self.text(depth - 1)}).split({self.pick('', repr('a'), repr(' '), repr('a') + ', 1', 'none')})",
                         f"{self.items(depth - 1)} + {self.items(depth - 1)}", f"({self.items(depth - 1)})[{self.pick('0:1', '1:', ':-1', ':')}]",
                         f"[{self.anything(depth - 1)}, {self.anything(depth - 1)}]", f"({self.text(depth - 1)})|list",
                         f"{self.table(depth - 1)}.{self.pick('keys()', 'values()', 'items()')}|list")

    def table(self, depth=2):
        return self.pick("{'k': 'v', 'n': 2}", "{}", "{'role': " + self.text(depth - 1) + "}", "message", "messages[0]")

    def condition(self):
        return self.pick("(" + self.anything(2) + ")", self.truth(2), self.truth(1))

    def tag(self, inside):
        return "{%" + self.pick("", "", "-", "+") + self.pick(" ", "") + inside + self.pick(" ", "  ") + self.pick("", "", "-", "+") + "%}"

    def block(self, depth, loop):
        out = []
        for _ in range(self.rng.randint(1, 4)):
            out.append(self.space())
            kind = self.rng.randrange(12)
            if kind < 4 or depth <= 0:
                out.append("{{" + self.pick("", "", "-") + " " + self.pick(self.text, self.text, self.number, self.truth, self.odd)(2) + " " + self.pick("", "", "-") + "}}")
            elif kind < 6:
                parts = [self.tag("if " + self.condition()), self.block(depth - 1, loop)]
                if self.rng.random() < 0.3:
                    parts += [self.tag("elif " + self.condition()), self.block(depth - 1, loop)]
                if self.rng.random() < 0.4:
                    parts += [self.tag("else"), self.block(depth - 1, loop)]
                out += parts + [self.tag("endif")]
            elif kind < 9:
                over = self.pick("messages", "messages", "messages[1:]", "[1, 2]", "'ab'", "range(3)", self.items(1))
                head = self.pick(f"for message in messages{self.pick('', '[1:]', '[::-1]')}", f"for z in {over}",
                                 f"for message in messages if {self.condition()}",
                                 "for x, y in {'k': 'm', 'l': 'n'}.items()")
                parts = [self.tag(head), self.block(depth - 1, True)]
                if self.rng.random() < 0.2:
                    parts += [self.tag("else"), self.block(depth - 1, loop)]
                out += parts + [self.tag("endfor")]
            elif kind < 11:
                out.append(self.tag(self.pick("set x = " + self.anything(2), "set ns = namespace(a=" + self.text(1) + ", b=1)",
                                              "set ns.a = " + self.text(1), "set y = " + self.anything(1))))
            else:
                out.append(self.pick("{# note #}", "{#- note -#}", "{# a\n b +#}", self.tag("break") if loop else "",
                                     self.tag("continue") if loop else "", "{% if false %}{{ raise_exception('no') }}{% endif %}", "{% raw %}{% endraw %}"))
        out.append(self.space())
        return "".join(out)


def environment():
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])

    def raise_exception(message):
        raise TemplateError(message)

    env.globals["raise_exception"] = raise_exception
    env.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    return env


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--templates", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    env = environment()
    maker = Maker(arguments.seed)
    cases = []
    for _ in range(arguments.templates):
        # Every name has a value everywhere, so that most templates get to their end.
        head = "{% set x = 'X' %}{% set y = 2 %}{% set ns = namespace(a='A', b=3) %}{% set message = {'role': 'r', 'content': ' c '} %}"
        head += "{% set loop = {'first': true, 'last': false, 'index0': 0, 'index': 1, 'length': 1, 'revindex': 1, 'revindex0': 0} %}"
        if maker.rng.random() < 0.3:
            head += "{% macro f(a, b='B') %}" + maker.block(1, False).replace("x", "a") + "{% endmacro %}"
            head += "{%- macro g(a=1, b=a) %}" + maker.block(1, False) + "{{ b }}{%- endmacro %}"
            maker.macros = True
        template = head + maker.block(3, False)
        maker.macros = False
        cases.append({"template": template, "messages": maker.rng.choice(CONVERSATIONS), "bos_token": "<s>", "eos_token": "</s>",
                      "add_generation_prompt": maker.rng.random() < 0.5})
    lines = "".join(json.dumps(c) + "\n" for c in cases)
    done = subprocess.run([arguments.program], input=lines.encode(), stdout=subprocess.PIPE, check=True)
    answers = [json.loads(line) for line in done.stdout.decode().split("\n")[:-1]]
    counts = {"same text": 0, "both fail": 0, "refused": 0, "only jinja fails": 0, "different": 0}
    for case, answer in zip(cases, answers, strict=True):
        variables = {k: v for k, v in case.items() if k != "template"}
        try:
            want = env.from_string(case["template"]).render(tools=None, documents=None, **variables)
        except Exception as error:  # whatever Python raises inside of a template
            want = error
        if isinstance(want, Exception):
            kind = "both fail" if "error" in answer else "only jinja fails"
        elif "text" in answer:
            kind = "same text" if answer["text"] == want else "different"
        else:
            kind = "refused" if "not supported" in answer["error"] else "different"
        counts[kind] += 1
        if kind == "different" and counts[kind] <= 10:
            print(f"template {case['template']!r}\n  jinja {want!r}\n  here  {answer}")
    print(counts)
    return 1 if counts["different"] or not counts["same text"] else 0


if __name__ == "__main__":
    sys.exit(main())
