"""Finds names in back-ticks that do not exist: in README.md, docs/*.md, docstrings and comments. `python .ci/check_names.py`.

The rule: each word in back-ticks must occur somewhere in the code, as a name or inside a string that is not a docstring. A word
that ends with an underscore begins such a word. Beyond that, a path to a file must end the path of a file, a dotted path that
begins with a package of ours must lead to something, and so must `Class.member`, and a `--flag` must be an option or a setting.
Words in capitals inside a longer text stand for values. Blocks of code in a page are run by tests and not looked at; what they
define is known on that page. Generated pages are known, and not looked at. Exit code 1 if anything is found.
"""

from __future__ import annotations

import ast
import builtins
import io
import keyword
import re
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
CODE = ("eventstore", "mailbox", "cluster", "spark_jobs", "benchmarks", "tests", "docs/examples", ".ci")
PACKAGES = {
    "eventstore": "eventstore",
    "eventstore_mailbox": "mailbox/eventstore_mailbox",
    "eventstore_cluster": "cluster/eventstore_cluster",
    "pyspark_eventstore": "spark_jobs/pyspark_eventstore",
    "tests": "tests",
    "benchmarks": "benchmarks",
}
FILE = re.compile(r"[\w./-]+\.(?:py|md|toml|txt)")
WORD = re.compile(r"(?<![A-Za-z0-9_])[A-Za-z_][A-Za-z0-9_]{2,}")
STRINGS = (tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING))
FLAG = re.compile(r"(?<![\w-])--([a-z][a-z-]+)")
GENERATED = ("MODULES.md", "REFERENCE.md")
IN_TICKS = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")

ALLOWED = {
    "options of pip, rsync and spark-submit": "deps wheel_dir exclude py_files",
    "of PostgreSQL, LMDB, Spark, Prometheus": "LISTEN writemap from_json Trigger AvailableNow disabled increase",
    "of uWSGI, Django and Celery": "osafterfork apps on_commit acks_late",
    "of the library eventsourcing, with names of applications": (
        "BANK_EVENTSTORE_STORE BALANCES_PERSISTENCE_MODULE ORIGINATOR_ID_TYPE EventSourcedProjection"
    ),
    "a package that a reader may want, and we do not": "psycopg_pool",
    "names that are forbidden here": "utils",
    "stand for something in an example": "backup refunds SomeError job.py eventstore_NAME",
}
"""Reason → names that need not exist, separated by spaces."""


@dataclass
class Known:
    """Everything that exists in the tree."""

    words: set[str] = field(default_factory=lambda: set(dir(builtins)) | set(keyword.kwlist))
    files: set[str] = field(default_factory=set)
    members: dict[str, set[str]] = field(default_factory=dict)
    bases: dict[str, set[str]] = field(default_factory=dict)
    remarks: list[tuple[str, str]] = field(default_factory=list)  # (place, line) of docstrings and comments

    def members_of(self, name: str) -> set[str] | None:
        """Attributes of a class with those of its bases; None if a base is not ours."""
        found = set(self.members[name])
        for base in self.bases[name]:
            inherited = self.members_of(base) if base in self.members and base != name else None
            if inherited is None and base not in ("Generic", "Protocol", "object"):
                return None
            found |= inherited or set()
        return found


def docstrings(tree: ast.AST) -> set[int]:
    """The lines on which a string begins that is an expression of its own: docstrings, also of attributes."""
    strings = [node.value for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)]
    return {string.lineno for string in strings if isinstance(string.value, str)}


def words_of(text: str) -> Iterator[str]:
    """Words as they may be spoken of: `file_size_bytes` of `--file-size-bytes`, `order` of `order-42`."""
    yield from WORD.findall(text)
    yield from (word.replace("-", "_") for word in re.findall(r"[a-z]+(?:-[a-z]+)+", text))


def learn(path: Path, known: Known) -> None:
    """Adds the names of a module, and its docstrings and comments."""
    source = path.read_text(encoding="utf-8")
    tree = ast.parse(source)
    skipped = docstrings(tree)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.NAME:
            known.words.add(token.string)
        elif token.type == tokenize.COMMENT or (token.type == tokenize.STRING and token.start[0] in skipped):
            if "`" in token.string:
                lines = enumerate(token.string.splitlines(), token.start[0])
                known.remarks += [(f"{path.relative_to(ROOT)}:{number}", line) for number, line in lines]
        elif token.type in STRINGS:
            known.words.update(words_of(token.string))
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            known.words.add(re.sub(r"(?<!^)(?=[A-Z])", "_", node.name).upper())  # a request as the protocol writes it
            inner = [
                each
                for each in ast.walk(node)
                if isinstance(each, ast.Attribute | ast.Name | ast.FunctionDef | ast.AsyncFunctionDef)
            ]
            known.members.setdefault(node.name, set()).update(
                each.attr if isinstance(each, ast.Attribute) else each.id if isinstance(each, ast.Name) else each.name
                for each in inner
            )
            known.bases.setdefault(node.name, set()).update(
                ast.unparse(base).split("[")[0].split(".")[-1] for base in node.bases
            )


def everything() -> Known:
    """Reads the tree once."""
    known = Known()
    for folder in CODE:
        for path in (ROOT / folder).rglob("*.py"):
            learn(path, known)
    for path in (*ROOT.glob("*.*"), *(each for folder in (*CODE, "docs") for each in (ROOT / folder).rglob("*.*"))):
        if path.is_file() and path.suffix != ".pyc":
            relative = path.relative_to(ROOT)
            known.files.update(each.as_posix() for each in (relative, *relative.parents))
            known.words.update(words_of(relative.with_suffix("").as_posix()))
    for name in ("Makefile", "pyproject.toml", "constraints.txt", *(f"docs/{page}" for page in GENERATED)):
        known.words.update(words_of((ROOT / name).read_text(encoding="utf-8")))
    for names in ALLOWED.values():
        known.words.update(names.split())
    return known


def pages() -> Iterator[tuple[str, str, set[str]]]:
    """(place, line, words that the page defines) of each line of the pages, without blocks of code."""
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        if page.name in GENERATED:
            continue
        text = page.read_text(encoding="utf-8")
        blocks = re.compile(r"^```.*?^```", re.M | re.S)
        own = {word for block in blocks.findall(text) for word in (*words_of(block), *block.split("\n", 1)[0].split())}
        prose = blocks.sub(lambda block: "\n" * block[0].count("\n"), text)
        for number, line in enumerate(prose.splitlines(), 1):
            yield f"{page.relative_to(ROOT)}:{number}", line, own


def missing(text: str, known: Known, own: set[str]) -> str | None:
    """Why a text in back-ticks names something that does not exist; None if it does."""
    if FILE.fullmatch(text):
        tail = text.removeprefix("../").removeprefix("./")
        there = tail in known.words | own or any(f"/{path}".endswith(f"/{tail}") for path in known.files)
        return None if there else "no such file"
    for flag in FLAG.findall(text):
        if flag.removeprefix("no-").replace("-", "_") not in known.words | own:
            return f"no option --{flag}"
    for dotted in re.findall(r"\b[A-Za-z_]\w*(?:\.\w+)+", text):
        if (why := missing_dotted(dotted, known, own)) is not None:
            return why
    for word in WORD.findall(FLAG.sub(" ", text)):
        if word in known.words or word in own or (word.isupper() and word != text and "_" not in word):
            continue
        if not (word.endswith("_") and any(each.startswith(word) for each in known.words)):
            return f"no {word}"
    return None


def missing_dotted(dotted: str, known: Known, own: set[str]) -> str | None:
    """Why a dotted path leads nowhere; None if it leads somewhere, or is of no kind that can be followed."""
    first, *rest = dotted.split(".")
    if first in PACKAGES and first not in own and f"{first}.{rest[0]}" != "eventstore.toml":
        place = PACKAGES[first]
        while rest and (f"{place}/{rest[0]}" in known.files or f"{place}/{rest[0]}.py" in known.files):
            place += f"/{rest.pop(0)}"
        if not rest:
            return None
        module = ROOT / (f"{place}.py" if f"{place}.py" in known.files else f"{place}/__init__.py")
        return None if re.search(rf"\b{re.escape(rest[0])}\b", module.read_text(encoding="utf-8")) else f"no {dotted}"
    if first in known.members and first not in own and (members := known.members_of(first)) is not None:
        return None if rest[0] in members else f"{first} has no {rest[0]}"
    return None


def main() -> int:
    """Prints what is found."""
    known, found = everything(), 0
    for place, line, own in (*pages(), *((place, line, set()) for place, line in known.remarks)):
        for text in IN_TICKS.findall(line):
            if (why := missing(text, known, own)) is not None:
                print(f"{place}: `{text}`: {why}")
                found += 1
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
