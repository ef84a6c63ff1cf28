#!/usr/bin/env python3
"""scripts/corpus.py on packages that this test makes: what is taken, what is dropped, and that nothing is replaced."""
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts" / "corpus.py"
WORDS = "ant bee cat dog eel fox gnu hen ibis jay kite lark mole newt owl pig quail rat swan toad".split()


def prose(seed, paragraphs=6):
    """Different letters for each seed, in paragraphs."""
    out = []
    for p in range(paragraphs):
        number = seed * 1000 + p
        words = [WORDS[(number * 7919 + i * i * 31 + (number >> (i % 11))) % len(WORDS)] for i in range(30)]
        out.append(" ".join(words) + " " + "".join(chr(97 + int(d)) * 2 for d in f"{number:08}"))
    return "\n\n".join(out) + "\n"


def package(folder, name, files, copyright_text="Format: x\nLicense: GPL-3+\n"):
    root = folder / f"{name}.root"
    files = dict(files) | {f"usr/share/doc/{name}/copyright": copyright_text}
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(text if isinstance(text, bytes) else text.encode())
    (root / "DEBIAN").mkdir()
    (root / "DEBIAN/control").write_text(f"Package: {name}\nVersion: 1.2-3\nArchitecture: all\nMaintainer: Nobody <n@example.org>\n"
                                         "Description: a test\n")
    subprocess.run(["dpkg-deb", "--root-owner-group", "--build", str(root), str(folder / f"{name}_1.2-3_all.deb")],
                   check=True, stdout=subprocess.DEVNULL)
    shutil.rmtree(root)


def run(out, debs, *options):
    return subprocess.run([sys.executable, str(SCRIPT), str(out), "--debs", str(debs), *options], capture_output=True, text=True)


def entries(out, part):
    return [json.loads(line) for path in sorted((out / part).glob("*.jsonl")) for line in path.read_text().splitlines()]


class Corpus(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="dsmoe-corpus-"))
        self.addCleanup(shutil.rmtree, self.folder)
        self.debs = self.folder / "debs"
        self.debs.mkdir()

    def build(self, name="out", *options):
        result = run(self.folder / name, self.debs, *options)
        self.assertEqual(result.returncode, 0, result.stderr)
        return self.folder / name

    def test_domains_duplicates_and_sources(self):
        repeated = prose(500, 1).strip()
        spaced = repeated.upper().replace(" ", "  12 ")  # the same letters
        package(self.debs, "golang-1.19-src", {
            "usr/share/go/a.go": prose(1), "usr/share/go/same_as_a.go": prose(1), "usr/share/go/b.go": repeated + "\n\n" + prose(2),
            "usr/share/go/c.go": spaced + "\n\n" + prose(3), "usr/share/go/short.go": "x\n", "usr/share/go/binary.go": b"\0" * 999,
            "usr/share/go/generated.go": "a" * 5000, "usr/share/go/README": prose(4)})
        package(self.debs, "zsh-doc", {
            "usr/share/doc/zsh-doc/html/index.html":
                "<!DOCTYPE html><html><head><title>t</title></head><body><script>var hidden;</script>"
                + "".join(f"<p>{p} &amp; more</p>" for p in prose(5).split("\n\n")) + "<pre>line 1\n  line 2</pre></body></html>"},
            "Format: x\nFiles: *\nLicense: MIT\n\nFiles: x\nLicense: BSD-3-clause\n" + prose(6))
        package(self.debs, "sbcl-source", {}, "It has this\nLicense: you may do what you want with it\n")
        package(self.debs, "debian-handbook", {"usr/share/doc/debian-handbook/html/de-DE/a.html": "<html>" + prose(7) + "</html>",
                                               "usr/share/doc/debian-handbook/html/en-US/a.html": "<html>" + prose(8) + "</html>"})
        out = self.build()
        found = {e["source"]: e for part in ("train", "heldout") for e in entries(out, part)}
        domains = {source: e["domain"] for source, e in found.items()}
        go = [s for s, d in domains.items() if d == "go"]
        self.assertEqual(len(go), 3, domains)
        self.assertEqual(sum(s.endswith("a.go") for s in go), 1, "an exact duplicate goes")
        texts = [found[s]["text"] for s in go]
        self.assertEqual(sum(repeated in t or spaced in t for t in texts), 1, "a paragraph that differs in spaces and digits goes")
        self.assertEqual(domains["debian-handbook:/usr/share/doc/debian-handbook/html/de-DE/a.html"], "german")
        self.assertEqual(domains["debian-handbook:/usr/share/doc/debian-handbook/html/en-US/a.html"], "books")
        page = found["zsh-doc:/usr/share/doc/zsh-doc/html/index.html"]["text"]
        self.assertIn("& more", page)
        self.assertIn("line 1\n  line 2", page)
        for wrong in ("<", "hidden"):
            self.assertNotIn(wrong, page)
        self.assertEqual(domains["zsh-doc:/usr/share/doc/zsh-doc/copyright"], "licences")
        rows = [line.split("\t") for line in (out / "sources.tsv").read_text().splitlines()]
        self.assertEqual(rows[0], ["package", "version", "sha256", "files", "bytes", "licences"])
        row = {r[0]: r for r in rows[1:]}["zsh-doc"]
        self.assertEqual((row[1], row[3], row[5]), ("1.2-3", "2", "BSD-3-clause, MIT"))
        self.assertEqual(len(row[2]), 64)
        self.assertEqual({r[0]: r for r in rows[1:]}["sbcl-source"][5], "see the copyright file", "prose is no list of licences")
        self.assertIn("BSD-3-clause", (out / "copyright/zsh-doc").read_text())

    def test_the_held_out_part_is_of_whole_files_and_always_the_same(self):
        package(self.debs, "golang-1.19-src", {f"usr/share/go/{i}.go": prose(i, 3) for i in range(400)})
        first, second = self.build("first"), self.build("second")
        train, held = entries(first, "train"), entries(first, "heldout")
        self.assertEqual(len(train) + len(held), 400)
        self.assertTrue(1 <= len(held) <= 25, len(held))  # 8 expected
        self.assertFalse({e["source"] for e in train} & {e["source"] for e in held})
        paragraphs = {p for e in train for p in e["text"].split("\n\n")}
        self.assertFalse(paragraphs & {p for e in held for p in e["text"].split("\n\n") if len(p) > 60})
        for part in ("train", "heldout"):
            self.assertEqual((first / part / "go.jsonl").read_bytes(), (second / part / "go.jsonl").read_bytes())
        small = self.build("small", "--cap", "0.05")
        size = sum(len(e["text"].encode()) for part in ("train", "heldout") for e in entries(small, part))
        self.assertTrue(50_000 <= size <= 55_000, size)

    def test_nothing_is_replaced(self):
        package(self.debs, "golang-1.19-src", {"usr/share/go/a.go": prose(1)})
        for name in ("train", "heldout", "sources.tsv", "corpus.json", "copyright"):
            out = self.folder / f"with-{name}"
            out.mkdir()
            (out / name).write_text("mine")
            result = run(out, self.debs)
            self.assertNotEqual(result.returncode, 0)
            self.assertIn("already there", result.stderr)
            self.assertEqual([p.name for p in out.iterdir()], [name])
            self.assertEqual((out / name).read_text(), "mine")

    def test_a_damaged_package_is_an_error(self):
        (self.debs / "broken_1_all.deb").write_bytes(b"not a package")
        self.assertNotEqual(run(self.folder / "out", self.debs).returncode, 0)
        self.assertFalse((self.folder / "out/train").exists())
        empty = self.folder / "empty"
        empty.mkdir()
        self.assertIn("has no packages", run(self.folder / "none", empty).stderr)


if __name__ == "__main__":
    if shutil.which("dpkg-deb") is None:
        sys.exit(77)  # skipped: not Debian
    unittest.main()
