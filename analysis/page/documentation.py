"""Markdown of notes and of the artefacts' documentation, as HTML that needs nothing beside the page."""

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
"""A page an artefact: what the paper did, what we do, what differs, how to read it."""
PARSER = MarkdownIt("commonmark", {"html": False}).enable("table")
QUOTE = re.compile(r"<!-- (\S+) -->.*?<!-- /\1 -->|<!--.*?-->", re.S)
"""A block that quotes a table, which the page has itself, or another comment."""
EMPTY = re.compile(r"^(##+) [^\n]*\s*(?=^\1 |\Z)", re.M)
"""A heading below the title that nothing follows."""


@dataclass(frozen=True)
class About:
    """An artefact's documentation, as HTML. title: text. lead: its first paragraph. rest: what follows it."""

    title: str
    lead: Markup
    rest: Markup


def inline(text: str) -> Markup:
    """A line of Markdown."""
    return _html(PARSER.parseInline(text))


def glossary(path: Path = DOCS.parent / "glossary.md") -> dict[str, Markup]:
    """The meanings of the glossary's words, as HTML; words that are explained together are one text."""
    rows = re.findall(r"^\| (?!word )([^|]+) \| (.+) \|$", path.read_text(encoding="utf-8"), re.M)
    return {words: inline(meaning) for words, meaning in rows}


def about(name: str, artefacts: Collection[str], folder: Path = DOCS) -> About | None:
    """The documentation of an artefact, without its quotes of tables; None where there is none.

    artefacts: links to their pages lead to their sections.
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
    """Text whose links to artefacts lead to their sections; other files are named, pictures left out."""
    tokens: list[Token] = []
    file = ""
    for child in children:
        href = str(child.attrGet("href") or "")
        stem = posixpath.basename(href.partition("#")[0]).removesuffix(".md")
        if child.type == "link_open" and stem in artefacts:
            child.attrSet("href", f"#{stem}")
        elif child.type == "link_open" and not href.startswith(("https:", "http:", "#")):
            file = posixpath.normpath(posixpath.join("docs/artefacts", href))
            continue
        elif child.type == "link_close" and file:
            if not tokens[-1].content.endswith(posixpath.basename(file)):
                tokens.append(Token("html_inline", "", 0, content=f" (<code>{escape(file)}</code>)"))
            file = ""
            continue
        if child.type != "image":  # the page has the artefact's own figures
            tokens.append(child)
    return tokens


def _html(tokens: list[Token]) -> Markup:
    """The parser escapes what is not Markdown, and has no HTML of its own."""
    return Markup(PARSER.renderer.render(tokens, PARSER.options, {}))
