"""Writes the pages and modules that follow from the code: `python .ci/generate.py [--check]`.

With `--check` nothing is written; the exit code is 1 if any of them is out of date, and each is named.
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

from blocking_client import blocking_modules
from monitoring import grafana_dashboard, prometheus_rules
from protocol_page import PAGE, protocol_page
from reference_page import reference_page

ROOT = Path(__file__).parents[1]
PACKAGES = ("eventstore", "mailbox/eventstore_mailbox", "cluster/eventstore_cluster", "spark_jobs/pyspark_eventstore")


def first_sentence(path: Path) -> str:
    """Returns the first sentence of a module's docstring, as one line, up to a full stop or colon."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return re.split(r"(?<=[.:])\s", " ".join(text.split("\n\n")[0].split()), maxsplit=1)[0].rstrip(".:")


def modules_page() -> str:
    """Returns docs/MODULES.md: every package and module, with the first sentence of its docstring."""
    intro = "Generated from docstrings by `make generate`; how the packages fit together: [ARCHITECTURE](ARCHITECTURE.md)."
    lines = ["# Modules", "", intro, ""]
    for package in PACKAGES:
        for folder in sorted({path.parent for path in (ROOT / package).rglob("*.py")}):
            name = ".".join(folder.relative_to((ROOT / package).parent).parts)
            lines += [f"## {name}", "", first_sentence(folder / "__init__.py") + ".", ""]
            files = sorted(path for path in folder.glob("*.py") if path.stem != "__init__")
            lines += [*(f"- `{path.stem}`: {first_sentence(path)}" for path in files), ""]
    return "\n".join(lines)


def generated() -> dict[Path, str]:
    """Every generated file, with what it must hold."""
    pages = {
        ROOT / "docs" / "MODULES.md": modules_page(),
        ROOT / "docs" / "REFERENCE.md": reference_page(),
        PAGE: protocol_page(),
    }
    monitoring = {"prometheus-rules.yml": prometheus_rules(), "grafana-dashboard.json": grafana_dashboard()}
    pages |= {ROOT / "docs" / "monitoring" / name: text for name, text in monitoring.items()}
    return pages | blocking_modules()


def main(arguments: list[str]) -> int:
    """Writes what is out of date; with `--check` only names it."""
    stale = [path for path, text in generated().items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    for path in stale:
        if "--check" in arguments:
            print(f"{path.relative_to(ROOT)} is out of date: run `make generate`", file=sys.stderr)
        else:
            path.write_text(generated()[path], encoding="utf-8")
            print(f"{path.relative_to(ROOT)} written")
    return 1 if stale and "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
