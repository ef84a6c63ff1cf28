#!/usr/bin/env python3
"""Builds a corpus of real text from Debian packages alone: documentation, manual pages, books, licences, program text and
translations, in domains with labels. For docs/paper.md; nothing else needs it.

    scripts/corpus.py OUT              downloads the packages with apt-get into OUT/debs and reads them
    scripts/corpus.py OUT --debs DIR   reads the packages in DIR, and downloads nothing

Nothing is installed, nothing is unpacked to disk, and nothing that is there is replaced or removed: an OUT that already has
a corpus is refused, and packages that are in OUT/debs are not downloaded again. What it writes:

    OUT/train/DOMAIN.jsonl, OUT/heldout/DOMAIN.jsonl   {"text", "domain", "source"} in each line, one file of a package
    OUT/sources.tsv      package, version, SHA-256 of the .deb, licences, and what was taken of it
    OUT/copyright/NAME   the copyright file of each package, as Debian has it
    OUT/corpus.json      sizes, and what was left out and why

The same packages give the same bytes: files are taken in the order of their contents' hashes.
"""
import argparse
import collections
import gzip
import hashlib
import html
import io
import json
import os
import pathlib
import re
import subprocess
import sys
import tarfile

MEGA = 1_000_000
HELD_OUT_EVERY = 50    # one file in so many is held out, by the hash of its contents
MIN_TEXT = 400         # characters of a file, after everything
MIN_PARAGRAPH = 60     # shorter ones (a brace, a heading) may repeat
MAX_FILE = 400_000     # characters: a larger file is cut there, so that no table fills a domain
MAX_LINE = 1_000       # mean characters in a line; more is generated text


def translations(code, region, packages):
    """A file of any of the packages whose path says that it is in this language."""
    return (packages + " apache2-doc debian-handbook gnome-user-docs installation-guide-amd64",
            rf"/({code}|{region})/|[._-]({code}|{region})(\.\w+)*$")


# (domain, packages, what of their files). A file belongs to the first domain that wants it.
DOMAINS = [
    ("german", *translations("de", "de[-_]DE", "manpages-de developers-reference-de debian-reference-de libreoffice-help-de "
                             "fortunes-de debian-faq-de")),
    ("french", *translations("fr", "fr[-_]FR", "manpages-fr manpages-fr-dev developers-reference-fr debian-reference-fr "
                             "libreoffice-help-fr aptitude-doc-fr debian-faq-fr")),
    ("spanish", *translations("es", "es[-_]ES", "manpages-es debian-reference-es libreoffice-help-es aptitude-doc-es "
                              "fortunes-es")),
    ("russian", *translations("ru", "ru[-_]RU", "manpages-ru developers-reference-ru libreoffice-help-ru fortunes-ru "
                              "debian-faq-ru")),
    ("japanese", *translations("ja", "ja[-_]JP", "manpages-ja manpages-ja-dev developers-reference-ja debian-reference-ja "
                               "libreoffice-help-ja aptitude-doc-ja debian-faq-ja")),
    ("manual", "manpages manpages-dev freebsd-manpages tcl8.6-doc tk8.6-doc glibc-doc perl-doc git-man bash openssh-client "
               "openssl libssl-doc systemd util-linux coreutils iproute2 erlang-manpages libncurses-dev ncurses-doc gcc-12 "
               "binutils-common ffmpeg btrfs-progs lvm2 qemu-utils postgresql-client-15 zsh-common imagemagick-6-common",
     r"/man/man\d"),
    ("books", "anarchism fortunes fortunes-mario fortunes-bofh-excuses dict-jargon debian-handbook miscfiles "
              "doc-debian asr-manpages",
     r"/(anarchism|games/fortunes|dictd|miscfiles|doc-debian|debian-handbook/html/en-US|man7)"),
    ("dictionary", "dict-gcide dict-wn dict-foldoc dict-vera dict-devil dict-elements", r"/dictd/.*\.dz$"),
    ("documentation", "debian-policy developers-reference debian-reference-en git-doc python3.11-doc postgresql-doc-15 "
                      "sqlite3-doc apache2-doc gnome-user-docs linux-doc-6.1 vim-runtime zsh-doc octave-doc exim4-doc-html "
                      "r-doc-html libreoffice-help-en-us aptitude-doc-en debian-faq installation-guide-amd64 maint-guide "
                      "debmake-doc",
     r"(/doc/(?!.*/(ar|ca|cs|da|el|es|eo|eu|fi|gl|hu|id|it|ko|lt|nl|no|pl|pt[-_]\w\w|pt|ro|sk|sv|th|tr|uk|vi|zh[-_]\w\w|"
     r"zh)[/.]).*|/help/(C|en-US)/.*)\.(html?(\.en)?|txt|rst|page|en)(\.gz)?$"),
    ("cpp", "libboost1.74-dev libeigen3-dev libstdc++-12-dev libglib2.0-dev libcgal-dev", r"/include/"),
    ("go", "golang-1.19-src", r"\.go$"),
    ("rust", "rust-src", r"\.rs$"),
    ("python", "libpython3.11-stdlib libpython3.11-minimal python3-sympy python3-django python3-networkx python3-numpy "
               "python3-scipy", r"\.py$"),
    ("php", "wordpress phpmyadmin", r"\.php$"),
    ("lisp", "emacs-el sbcl-source guile-3.0-libs", r"\.(el|lisp|scm)(\.gz)?$"),
    ("java", "openjdk-17-source", r"/src\.zip$"),
]
LICENCES = "licences"  # the domain of every package's copyright file, and of the texts in base-files


def fail(message):
    sys.exit("corpus.py: " + message)


def packages_wanted():
    names = {name for _, packages, _ in DOMAINS for name in packages.split()}
    return sorted(names | {"base-files"})


def apt(*command, cwd=None):
    """What apt-cache or apt-get printed, in English."""
    done = subprocess.run(command, cwd=cwd, text=True, capture_output=True, env={**os.environ, "LC_ALL": "C"})
    if done.returncode != 0:
        fail(f"{' '.join(command[:2])} failed: {done.stderr.strip().splitlines()[-1]}")
    return done.stdout


def download(folder):
    """What apt knows of the packages, into the folder; those of other Debian releases that are missing are named."""
    folder.mkdir(parents=True, exist_ok=True)
    there = {path.name.split("_")[0] for path in folder.glob("*.deb")}
    wanted = [name for name in packages_wanted() if name not in there]
    known = set(re.findall(r"^(\S+):\n  Installed: .*\n  Candidate: [^(]", apt("apt-cache", "policy", *wanted), re.M))
    missing = [name for name in wanted if name not in known]
    wanted = [name for name in wanted if name in known]
    if wanted:  # in one go: each call of apt-get reads apt's lists again
        print(f"downloading {len(wanted)} packages", file=sys.stderr)
        apt("apt-get", "download", "-q", *wanted, cwd=folder)
    return missing


# --- files of a package ------------------------------------------------------------------------------------------------


def members(deb):
    """(path, bytes) of the package's plain files. Links are left out: what they point to is there too."""
    with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", str(deb)], stdout=subprocess.PIPE) as process:
        with tarfile.open(fileobj=process.stdout, mode="r|") as archive:
            for member in archive:
                if member.isreg():
                    yield "/" + member.name.lstrip("./"), archive.extractfile(member).read()
        process.stdout.read()
    if process.returncode != 0:
        fail(f"{deb}: dpkg-deb could not read it")


def zipped(path, data):
    import zipfile
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        for info in sorted(archive.infolist(), key=lambda i: i.filename):
            if info.filename.endswith(".java"):
                yield f"{path}/{info.filename}", archive.read(info)


def domain_of(package, path):
    if path == f"/usr/share/doc/{package}/copyright" or (package == "base-files" and "/common-licenses/" in path):
        return LICENCES
    for domain, packages, wanted in DOMAINS:
        if package in packages.split() and re.search(wanted, path):
            return domain
    return None


DROPPED_TAGS = re.compile(r"<(script|style|head|svg|nav)\b.*?</\1>|<!--.*?-->", re.S | re.I)
BLOCK_TAGS = re.compile(r"</?(p|div|li|ul|ol|dl|dt|dd|tr|table|h[1-6]|pre|br|section|title|item|note|steps|media)\b[^>]*>", re.I)
ANY_TAG = re.compile(r"<[a-zA-Z/!?][^>]*>")


def plain(text):
    """Of HTML and its relatives: the words. <pre> keeps its lines; elsewhere line ends are where blocks end."""
    text = DROPPED_TAGS.sub("", text)
    out = []
    for i, part in enumerate(re.split(r"(?is)<pre\b[^>]*>(.*?)</pre>", text)):
        if i % 2 == 0:
            part = BLOCK_TAGS.sub("\n\n", re.sub(r"\s+", " ", part))
        else:
            part = "\n\n" + part + "\n\n"
        out.append(html.unescape(ANY_TAG.sub("", part)))
    return re.sub(r"\n\s*\n", "\n\n", re.sub(r"[ \t\xa0]+\n", "\n", "".join(out))).strip() + "\n"


def text_of(path, data):
    """The file's text, or None for what is no text."""
    if data[:2] == b"\x1f\x8b":
        try:
            data = gzip.decompress(data)
        except (OSError, EOFError):
            return None
    if b"\0" in data:
        return None
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return None
    text = text.replace("\r\n", "\n").replace("\x08", "")
    if re.search(r"<html\b|<!doctype html|^<\?xml|^<page\b", text[:2000], re.I):
        text = plain(text)
    text = text[:MAX_FILE]
    if len(text) < MIN_TEXT or len(text) > MAX_LINE * (text.count("\n") + 1):
        return None
    return text


# --- duplicates --------------------------------------------------------------------------------------------------------


class Paragraphs:
    """Text that was there before goes: paragraphs (what stands between empty lines) are compared by their letters alone, so
    that neither spaces, digits nor punctuation make a difference. The first one in the order of files stays."""

    def __init__(self):
        self.seen = set()
        self.dropped_bytes = 0

    def new_of(self, text):
        kept = []
        for paragraph in re.split(r"\n[ \t]*\n", text):
            letters = re.sub(r"[\W\d_]+", "", paragraph).lower()
            if len(letters) >= MIN_PARAGRAPH:
                key = hashlib.blake2b(letters.encode(), digest_size=8).digest()
                if key in self.seen:
                    self.dropped_bytes += len(paragraph.encode())
                    continue
                self.seen.add(key)
            kept.append(paragraph)
        return "\n\n".join(kept)


# --- the corpus --------------------------------------------------------------------------------------------------------


def field(deb, name):
    return subprocess.run(["dpkg-deb", "--field", str(deb), name], capture_output=True, text=True, check=True).stdout.strip()


def licences_of(copyright_text):
    """The short names of a machine-readable copyright file; of others only that it must be read."""
    machine_readable = re.match(r"\s*Format:", copyright_text)
    names = re.findall(r"^License:[ \t]*(\S[^\n]*)$", copyright_text, re.M) if machine_readable else []
    return ", ".join(sorted(set(n.strip() for n in names))) if names else "see the copyright file"


def read_packages(debs):
    """All wanted files as (hash, domain, package, path, text), without exact duplicates, and a row for each package."""
    files, rows, seen, skipped = [], {}, set(), collections.Counter()
    for deb in debs:
        package, version = field(deb, "Package"), field(deb, "Version")
        print(f"reading {package} {version}", file=sys.stderr)
        row = rows[package] = {"version": version, "sha256": hashlib.sha256(deb.read_bytes()).hexdigest(),
                               "licences": "see the copyright file", "copyright": "", "files": 0, "bytes": 0}
        for path, data in members(deb):
            domain = domain_of(package, path)
            if domain is None:
                continue
            for name, content in zipped(path, data) if path.endswith(".zip") else [(path, data)]:
                text = text_of(name, content)
                if domain == LICENCES and name.endswith("/copyright"):
                    row["copyright"] = content.decode("utf-8", "replace")
                    row["licences"] = licences_of(row["copyright"])
                if text is None:
                    skipped["no text, too short, or generated"] += 1
                    continue
                digest = hashlib.sha256(text.encode()).hexdigest()
                if digest in seen:
                    skipped["exact duplicate"] += 1
                    continue
                seen.add(digest)
                files.append((digest, domain, package, name, text))
    return files, rows, skipped


def build(out, debs, cap):
    for name in ("train", "heldout", "sources.tsv", "corpus.json", "copyright"):
        if (out / name).exists():
            fail(f"{out / name} is already there; choose another folder")
    files, rows, skipped = read_packages(debs)
    paragraphs = Paragraphs()
    sizes = collections.Counter()
    texts = collections.defaultdict(list)
    for digest, domain, package, path, text in sorted(files):
        if sizes[domain] >= cap:
            skipped["the domain is full"] += 1
            continue
        text = paragraphs.new_of(text)
        if len(text) < MIN_TEXT:
            skipped["nothing new in it"] += 1
            continue
        part = "heldout" if int(digest[:8], 16) % HELD_OUT_EVERY == 0 else "train"
        size = len(text.encode())
        sizes[domain] += size
        rows[package]["files"] += 1
        rows[package]["bytes"] += size
        texts[part, domain].append({"text": text, "domain": domain, "source": f"{package}:{path}"})
    summary = {"bytes": sum(sizes.values()), "paragraph_bytes_dropped": paragraphs.dropped_bytes, "left_out": dict(skipped),
               "domains": {}}
    for (part, domain), entries in sorted(texts.items()):
        folder = out / part
        folder.mkdir(parents=True, exist_ok=True)
        with open(folder / f"{domain}.jsonl", "x", encoding="utf-8") as file:
            for entry in entries:
                file.write(json.dumps(entry, ensure_ascii=False) + "\n")
        summary["domains"].setdefault(domain, {})[part] = {"files": len(entries),
                                                           "bytes": sum(len(e["text"].encode()) for e in entries)}
    (out / "copyright").mkdir()
    with open(out / "sources.tsv", "x", encoding="utf-8") as file:
        file.write("package\tversion\tsha256\tfiles\tbytes\tlicences\n")
        for package, row in sorted(rows.items()):
            file.write("\t".join([package, row["version"], row["sha256"], str(row["files"]), str(row["bytes"]),
                                  row["licences"]]) + "\n")
            if row["copyright"]:
                (out / "copyright" / package).write_text(row["copyright"], encoding="utf-8")
    (out / "corpus.json").write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
    return summary


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=pathlib.Path, metavar="OUT")
    parser.add_argument("--debs", type=pathlib.Path, help="folder with .deb files to read instead of downloading them")
    parser.add_argument("--cap", type=float, default=12, help="largest size of a domain in MB (default: 12)")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    folder = options.debs or options.out / "debs"
    missing = [] if options.debs else download(folder)
    debs = sorted(folder.glob("*.deb"))
    if not debs:
        fail(f"{folder} has no packages")
    summary = build(options.out, debs, options.cap * MEGA)
    if missing:
        print("apt has no " + ", ".join(missing) + ": left out")
    for domain, parts in sorted(summary["domains"].items()):
        sizes = [parts.get(part, {"files": 0, "bytes": 0}) for part in ("train", "heldout")]
        print(f"{domain:14} {sizes[0]['bytes'] / MEGA:7.2f} MB in {sizes[0]['files']:5} files, held out "
              f"{sizes[1]['bytes'] / MEGA:5.2f} MB in {sizes[1]['files']:4}")
    print(f"{summary['bytes'] / MEGA:.1f} MB of text; {summary['paragraph_bytes_dropped'] / MEGA:.1f} MB of repeated "
          f"paragraphs dropped; left out: {summary['left_out']}")


if __name__ == "__main__":
    main()
