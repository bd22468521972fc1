"""What mkdocs does not do by itself, while it builds the site.

Mathematics becomes MathML, which browsers draw without a script; the lists of commands and methods come from the
program itself, so they can't be stale; the changelog is the repository's; a link to a file that is not part of the
site becomes that file's name; and what a block's button copies are its commands, without prompts and what they print.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from latex2mathml.converter import convert
from mkdocs.structure.files import File, Files

from drdsgd.cli import app
from drdsgd.errors import option as spelled
from drdsgd.experiments import registry

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.pages import Page

__all__ = [
    "commands",
    "copied",
    "fill",
    "inside",
    "mathml",
    "methods_table",
    "on_files",
    "on_page_content",
    "on_page_markdown",
]

ROOT = Path(__file__).parent.parent
# how pymdownx.arithmatex marks what stands between dollars
MATHEMATICS = re.compile(r'<(span|div) class="arithmatex">(?:\\\(|\\\[)(.*?)(?:\\\)|\\\])</\1>', re.DOTALL)


# how pymdownx.highlight shows a block, and how pygments begins a line of it that is typed
BLOCK = re.compile(r'<div class="([\w -]*\bhighlight\b[\w -]*)"><pre>(.*?)</code></pre></div>', re.DOTALL)
PROMPT = re.compile(r'^(<span></span><code>)?<span class="gp">(\$ |&gt;&gt;&gt; |\.\.\. )</span>')


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """The changelog lies in the repository's root, and its links are seen from there."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").replace("](docs/", "](")
    files.append(File.generated(config, "changelog.md", content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    return inside(fill(markdown), Path(page.file.src_uri).parent)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    return copied(MATHEMATICS.sub(lambda found: mathml(found[2], block=found[1] == "div"), html))


def copied(page: str) -> str:
    """Blocks with prompts, each with what its button shall copy; what is typed may wrap instead of being cut off.

    >>> made = '<pre><span></span><code><span class="gp">$ </span>a &lt; b\\n7</code></pre></div>'
    >>> copied(f'<div class="highlight">{made}').partition("<pre>")[0]
    '<div class="highlight" data-copy="a &lt; b">'
    """

    def block(found: re.Match[str]) -> str:
        lines = found[2].split("\n")
        typed = [PROMPT.sub("", line) for line in lines if PROMPT.match(line)]
        if not typed:
            return found[0]
        text = "\n".join(html.unescape(re.sub(r"<[^>]*>", "", line)) for line in typed)
        shown = ""
        for i, line in enumerate(lines):
            end = "\n" if i + 1 < len(lines) else ""
            opened = "<span></span><code>" if line.startswith("<span></span><code>") else ""
            line = line.removeprefix(opened) + end
            shown += opened + (f'<span class="typed">{line}</span>' if PROMPT.match(line) else line)
        return f'<div class="{found[1]}" data-copy="{html.escape(text)}"><pre>{shown}</code></pre></div>'

    return BLOCK.sub(block, page)


def mathml(latex: str, block: bool) -> str:
    r"""LaTeX, escaped for HTML, as MathML; `\tag{6}` puts the number of an equation beside it.

    >>> mathml("a &lt; b", block=False)[-58:]
    '<mrow><mi>a</mi><mo>&#x0003C;</mo><mi>b</mi></mrow></math>'
    """
    tag = re.search(r"\\tag\{(.*?)\}", latex)
    untagged = html.unescape(latex.replace(tag[0], "") if tag else latex).strip()
    # a bold one of its own: browsers do not draw MathML's bold
    made = convert(untagged.replace(r"\mathbf{1}", "𝟏"), display="block" if block else "inline")
    if not block:
        return made
    number = f'<span class="number">({tag[1]})</span>' if tag else ""
    return f'<div class="equation">{made}{number}</div>'


def fill(markdown: str) -> str:
    """Put what the program says of itself where a page asks for it."""
    for mark, text in (("<!-- commands -->", commands), ("<!-- methods -->", methods_table)):
        if mark in markdown:
            markdown = markdown.replace(mark, "\n".join(text()))
    return markdown


def inside(markdown: str, folder: Path) -> str:
    """Links out of `docs/` as the names of what they lead to, as the site has no such pages.

    >>> inside("see [deploy](../deploy/README.md) and [this](faq.md)", Path("."))
    'see deploy (`deploy/README.md`) and [this](faq.md)'
    """

    def link(found: re.Match[str]) -> str:
        target = (ROOT / "docs" / folder / found[2]).resolve()
        if target.is_relative_to(ROOT / "docs"):
            return found[0]
        name = target.relative_to(ROOT).as_posix()
        return f"`{name}`" if found[1].strip("`") == name else f"{found[1]} (`{name}`)"

    return re.sub(r"\[([^\]]+)\]\((\.\./[^)#]+)\)", link, markdown)


def commands() -> Iterator[str]:
    """Every command with its options, as Markdown."""
    for name, command in _below(typer.main.get_command(app)):
        yield f"\n## drdsgd {name}\n\n{command.help}\n"
        panels: dict[str, list[str]] = {}
        for one in (parameter for parameter in command.params if parameter.name != "help"):
            spelled = one.opts[0] if one.opts[0].startswith("-") else one.metavar or one.name.upper()
            panels.setdefault(one.rich_help_panel or "In general", []).append(_row(f"`{spelled}`", one.help or ""))
        for panel, rows in panels.items():
            yield from ("", *_head(panel, ""), *rows)


def _below(command: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    if name:
        yield name, command
    for below, other in getattr(command, "commands", {}).items():
        yield from _below(other, f"{name} {below}".strip())


def methods_table() -> Iterator[str]:
    """The tables of `drdsgd algorithms`, as Markdown."""
    yield "\n## Algorithms\n"
    yield from _head("`--algorithm`", "", "objective", "optimizer", "own defaults", "source")
    for name, named in registry.ALGORITHMS.items():
        parts = f"`{named.objective}`", f"`{named.optimizer}`"
        yield _row(f"`{name}`", named.title, *parts, _spelled(named.options), named.source)
    for title, option, table in (
        ("Objectives", "--objective", registry.OBJECTIVES),
        ("Optimizers", "--optimizer", registry.OPTIMIZERS),
        ("With a server, as baselines", "--algorithm", registry.SERVERS),
    ):
        yield f"\n## {title}\n"
        yield from _head(f"`{option}`", "what", "numbers sent", "options, with defaults", "source")
        for name, rule in table.items():
            yield _row(f"`{name}`", rule.what, rule.sends or "—", _spelled(rule.options), rule.source)


def _spelled(options: Mapping[str, Any]) -> str:
    return ", ".join(f"`{spelled(name)}{'' if v is None else f' {v}'}`" for name, v in options.items()) or "—"


def _head(*names: str) -> tuple[str, str]:
    return _row(*names), "|---" * len(names) + "|"


def _row(*cells: str) -> str:
    """A line of a table; sum_i is no beginning of italics.

    >>> _row("`--q`", "KL(lambda | p) <= 1,\\n sum_i")
    '| `--q` | KL(lambda \\\\| p) <= 1, sum\\\\_i |'
    """
    return "| " + " | ".join(" ".join(cell.split()).replace("|", "\\|").replace("_", "\\_") for cell in cells) + " |"
