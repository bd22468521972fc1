"""One self-contained HTML page about runs: it opens offline and loads nothing.

`statistics` has the numbers. `content` turns them into the data that the page's script draws, and `fragments` into the
text and tables that need no script. `page.css` and `page.js` are copied into the page.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from pathlib import Path

from drdsgd.experiments.records import find_runs
from drdsgd.files import write_text
from drdsgd.report.content import content
from drdsgd.report.fragments import body
from drdsgd.report.groups import Groups, groups
from drdsgd.report.palette import COLOURS, DASHES, SCALE

__all__ = ["page", "write"]


def write(paths: Sequence[Path], out: Path, title: str = "drdsgd report") -> Path:
    """Write one HTML file about all runs at or below the paths; it needs no network and no other file."""
    text = page(groups(find_runs(paths)), title=title)
    write_text(out, text)
    return out


def page(*compared: Groups, title: str = "drdsgd report") -> str:
    """The whole page. Groups of one mapping are compared with each other; each mapping gets its own answer.

    Labels must differ, also between mappings.
    """
    drawn = content(*compared)
    here = files("drdsgd.report")
    style, script = ((here / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    looks = {"colours": COLOURS, "dashes": DASHES, "scale": SCALE}
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f"{_POLICY}\n"
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n"
        f"{body(compared, title, drawn)}\n"
        f'<script type="application/json" id="data">{_script_json(drawn | looks)}</script>\n'
        f"<script>\n{script}</script>\n</body>\n</html>\n"
    )


def _script_json(value: object) -> str:
    """JSON in which no HTML parser can find the end of the script."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


# whatever a hostile name or a bug may try, this page loads nothing
_POLICY = (
    "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; script-src 'unsafe-inline'; "
    "style-src 'unsafe-inline'; form-action 'none'; base-uri 'none'\">"
)
