"""Pages of the documentation site that live outside ``docs/``, and the links that lead out of it.

MkDocs calls this module while ``make docs`` builds. README, CONTRIBUTING, CHANGELOG and the
examples' READMEs become pages of the site. A link to one of them, or to a page, is rewritten to
where it is on the site; a link to any other file of the repository becomes its text, since a
reader of the site has no such file. A link to a file that is not there fails the build.
"""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
DOCS = "docs"

PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "reporting.md",
    "examples/README.md": "examples.md",
} | {
    f"examples/{path.parent.name}/README.md": f"examples-{path.parent.name}.md"
    for path in sorted(ROOT.glob("examples/*/README.md"))
}
"""Files of the repository, by their paths, and their pages on the site."""

SOURCES = {page: source for source, page in PAGES.items()}
FENCE = re.compile(r"^(```.*?^```|~~~.*?^~~~)", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")

_logger = logging.getLogger("mkdocs.hooks.site_pages")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that live elsewhere."""
    for source, page in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text("utf-8")))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite the links of one page; code stays as it is."""
    name = page.file.src_uri
    folder = os.path.dirname(SOURCES.get(name, f"{DOCS}/{name}"))
    parts = FENCE.split(markdown)
    return "".join(
        part if FENCE.match(part) else LINK.sub(lambda link: _on_site(link, folder, name), part)
        for part in parts
    )


def _on_site(link: re.Match[str], folder: str, page: str) -> str:
    """What stands on the site in place of one link."""
    mark, text, target = link.groups()
    path, hash_mark, anchor = target.partition("#")
    if not path or "://" in path or path.startswith("mailto:"):
        return link.group()
    path = os.path.normpath(os.path.join(folder, path))
    if path.startswith("..") or not (ROOT / path).exists():
        _logger.warning("%s: there is no %s, to which %s leads", page, path, link.group())
    if path in PAGES:
        path = PAGES[path]
    elif path.startswith(f"{DOCS}/"):
        path = path[len(DOCS) + 1 :]
    else:
        return str(text)
    return f"{mark}[{text}]({path}{hash_mark}{anchor})"
