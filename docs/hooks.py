"""Hooks of MkDocs: pages from outside docs/ join the site, and links in both directions lead there.

The pages stay where people look for them in a repository, and their links work there, too.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parent.parent
#: Files of the repository, and what they are called on the site.
OUTSIDE = {
    "README.md": "index.md",
    "CHANGELOG.md": "CHANGELOG.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "benchmarks/README.md": "benchmarks.md",
}
_LINK = re.compile(r"\[([^]\n]*)\]\(([^)\s:]+)\)")


def on_files(files: Any, config: Any) -> Any:
    for source, name in OUTSIDE.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    names = {name: source for source, name in OUTSIDE.items()}
    here = page.file.src_uri
    folder = (ROOT / names.get(here, f"docs/{here}")).parent

    def link(found: re.Match[str]) -> str:
        target, mark, anchor = found[2].partition("#")
        if not target:
            return found[0]
        path = Path(os.path.normpath(folder / target)).relative_to(ROOT).as_posix()
        name = OUTSIDE.get(path, path.removeprefix("docs/") if path.startswith("docs/") else "")
        if not name.endswith(".md"):
            return found[1]  # code: there is no page of it
        return f"[{found[1]}]({os.path.relpath(name, Path(here).parent)}{mark}{anchor})"

    return _LINK.sub(link, markdown)
