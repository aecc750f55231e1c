"""Markdown of notes and of the artefacts' documentation as HTML,
which needs no files beside the page.
"""

import posixpath
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup, escape

from analysis.load import ROOT

DOCS = ROOT / "docs" / "artefacts"
"""Folder with a page per artefact: what the paper did, what we do, what differs, how to read it."""
PARSER = MarkdownIt("commonmark", {"html": False}).enable("table")
QUOTE = re.compile(r"<!-- (\S+) -->.*?<!-- /\1 -->|<!--.*?-->", re.S)
"""A block that quotes a table, which the page shows anyway, or another comment."""
EMPTY = re.compile(r"^(##+) [^\n]*\s*(?=^\1 |\Z)", re.M)
"""A heading below the title without a text."""


@dataclass(frozen=True)
class About:
    """An artefact's documentation as HTML.

    title: plain text. lead: its first paragraph. rest: the others.
    """

    title: str
    lead: Markup
    rest: Markup


def inline(text: str) -> Markup:
    """A line of Markdown as HTML."""
    return _html(PARSER.parseInline(text))


def glossary(path: Path = DOCS.parent / "glossary.md") -> dict[str, Markup]:
    """The glossary: words -> their meaning as HTML; words that are explained together share one
    key.
    """
    rows = re.findall(r"^\| (?!word )([^|]+) \| (.+) \|$", path.read_text(encoding="utf-8"), re.M)
    return {words: inline(meaning) for words, meaning in rows}


def about(name: str, artefacts: Collection[str], folder: Path = DOCS) -> About | None:
    """The documentation of an artefact, without its quotes of tables; None if it has none.

    artefacts: names of those whose links lead to their sections of the page.
    """
    path = folder / f"{name}.md"
    if not path.is_file():
        return None
    tokens = PARSER.parse(EMPTY.sub("", QUOTE.sub("", path.read_text(encoding="utf-8"))))
    title, tokens = tokens[1].content, tokens[3:]
    for token in tokens:
        if token.type in ("heading_open", "heading_close"):
            token.tag = f"h{min(int(token.tag[1]) + 1, 6)}"  # below the section's own
        token.children = _settled(token.children or [], set(artefacts))
    lead = 3 if tokens and tokens[0].type == "paragraph_open" else 0
    return About(title, _html(tokens[:lead]), _html(tokens[lead:]))


def _settled(children: list[Token], artefacts: set[str]) -> list[Token]:
    """Tokens in which links to artefacts lead to their sections; other files are named,
    pictures left out.
    """
    tokens: list[Token] = []
    file = ""
    for child in children:
        href = str(child.attrGet("href") or "")
        stem = posixpath.basename(href.partition("#")[0]).removesuffix(".md")
        if child.type == "link_open" and stem in artefacts and "/published/" not in href:
            child.attrSet("href", f"#{stem}")
        elif child.type == "link_open" and not href.startswith(("https:", "http:", "#")):
            file = posixpath.normpath(posixpath.join("docs/artefacts", href))
            continue
        elif child.type == "link_close" and file:
            if not tokens[-1].content.endswith(posixpath.basename(file)):
                tokens.append(
                    Token("html_inline", "", 0, content=f" (<code>{escape(file)}</code>)")
                )
            file = ""
            continue
        if child.type != "image":  # the page has the artefact's own figures
            tokens.append(child)
    return tokens


def _html(tokens: list[Token]) -> Markup:
    """Tokens as HTML; this is safe, since the parser escapes all text
    and passes no HTML through.
    """
    return Markup(PARSER.renderer.render(tokens, PARSER.options, {}))
