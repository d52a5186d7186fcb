"""Configures Sphinx for `make docs`: these pages, and those of the repository that they link to, as a site."""

import base64
import re
from pathlib import Path

import mermaidx
from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

ROOT = Path(__file__).parent.parent
INDEX = "docs/README"

project = "Inference service"
extensions = ["myst_parser"]
root_doc = INDEX
include_patterns = ["*.md", "docs/**.md", "examples/*.md"]
exclude_patterns = ["**/.*", "**/_site", "**/node_modules", "var"]
smartquotes = False
highlight_language = "none"

myst_heading_anchors = 6  # named as GitHub names them
myst_fence_as_directive = ["mermaid"]

html_theme = "furo"
html_title = project
html_copy_source = False
html_show_copyright = False
html_show_search_summary = False  # a browser does not let a page that is a file read another one
html_use_index = False
html_static_path = ["site.css"]
html_css_files = ["site.css"]


class Mermaid(SphinxDirective):
    """A diagram, drawn when the site is made: a browser needs no script for it."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        try:
            svg = mermaidx.render("\n".join(self.content)).svg()
        except RuntimeError as error:
            raise self.error(str(error)) from error
        width = float(re.search(r'viewBox="\S+ \S+ (\S+)', svg)[1])
        image = f"data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}"
        size = f"min-width: {width * 0.6:.0f}px; max-width: {width:.0f}px"
        html = f'<div class="diagram"><img alt="diagram" style="{size}" src="{image}"></div>'
        return [nodes.raw("", html, format="html")]


def add_navigation(app: Sphinx, page: str, source: list[str]) -> None:
    """Add the pages that the index lists to the navigation, by its headings and in its order."""
    if page == INDEX:
        for section in re.split(r"^#+ ", source[0], flags=re.MULTILINE)[1:]:
            heading = section.partition("\n")[0]
            pages = "\n".join(re.findall(r"\]\(([^)]+\.md)\)", section))
            source[0] += pages and f"\n\n```{{toctree}}\n:hidden:\n:caption: {heading}\n\n{pages}\n```\n"


def unlink_folders(app: Sphinx, page: nodes.document) -> None:
    """Leave the text alone of links to folders of the repository, which have no pages."""
    for link in list(page.findall(pending_xref)):
        if (ROOT / link["refdoc"]).parent.joinpath(link["reftarget"]).is_dir():
            link.replace_self(link.children)


def setup(app: Sphinx) -> None:
    app.add_directive("mermaid", Mermaid)
    app.connect("source-read", add_navigation)
    app.connect("doctree-read", unlink_folders)
