"""The site of these pages: `make docs` builds it with Sphinx, and any warning ends that.

The pages are written to be read on GitHub; what the site needs beside them stands here. Links and anchors are spelt as
there. Of a link to a file that is no page Sphinx puts the file on the site; of one to a folder the words alone stay.

Why Sphinx: it takes README.md and docs/ where they are, so that no link is rewritten, it looks at every link and anchor
itself, and it is kept. MkDocs, and Material for it, are not any more; Zensical has not come to a version 1 yet.
"""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from docutils.nodes import document
    from sphinx.application import Sphinx

project = "widedraft"
copyright = "widedraft's authors, Apache-2.0"  # noqa: A001  # Sphinx calls it so
extensions = ["myst_parser"]
root_doc = "README"
include_patterns = ["*.md", "docs/**.md"]
myst_heading_anchors = 4  # levels of headings that links may name, spelt as GitHub spells them
highlight_language = "none"  # of commands and what they print
smartquotes = False  # signs stay as they are written
html_theme = "furo"
html_title = "widedraft"
html_copy_source = False
html_use_index = False

# The order of the sidebar, each group under its heading, each page with its title there.
NAVIGATION = {
    "First steps": {
        "Getting started": "getting_started",
        "Concepts": "concepts",
        "Tutorial": "tutorial",
    },
    "Make a draft": {
        "Recipes": "recipes",
        "Prune a target": "prune",
        "Generate responses": "generate",
    },
    "Train it": {
        "Train the draft": "train",
        "Clusters and large targets": "clusters",
    },
    "Use it": {
        "Evaluation": "evaluate",
        "Deployment": "deploy",
        "Online training": "online",
    },
    "Results": {
        "Benchmarks": "benchmarks",
        "Library bugs": "library_bugs",
    },
}
PROJECT = {"Contributing": "CONTRIBUTING", "Changelog": "CHANGELOG"}  # beside README.md, which links to them


def add_navigation(_: "Sphinx", page: str, source: list[str]) -> None:
    """Put the sidebar's entries behind the first page, which GitHub shows without them."""
    if page == root_doc:
        source[0] += "".join(map(toctree, NAVIGATION, NAVIGATION.values())) + toctree("Project", PROJECT, folder="")


def toctree(heading: str, pages: dict[str, str], folder: str = "docs/") -> str:
    """A group of the sidebar, as myst reads it."""
    entries = "\n".join(f"{title} </{folder}{page}>" for title, page in pages.items())
    return f"\n```{{toctree}}\n:hidden:\n:caption: {heading}\n\n{entries}\n```\n"


def unlink_folders(app: "Sphinx", page: "document") -> None:
    """Leave the words alone of a link to a folder of the repository, which a site has no page for."""
    from sphinx.addnodes import pending_xref

    for link in list(page.findall(pending_xref)):
        folder = Path(app.srcdir, link["refdoc"]).parent / link["reftarget"]
        if link["reftarget"].endswith("/") and folder.is_dir():
            link.replace_self(link.children)


def setup(app: "Sphinx") -> None:
    app.connect("source-read", add_navigation)
    app.connect("doctree-read", unlink_folders)
