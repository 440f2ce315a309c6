"""A page of findings with pictures: one file that needs no network."""

import base64
import html
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from pcdet.utils.files import write_text

_STYLE = """body{font:15px/1.45 system-ui,sans-serif;margin:2em auto;max-width:1100px;padding:0 1em;color:#1c2733}
h1{font-size:1.5em}h2{font-size:1.15em;margin-top:2em}table{border-collapse:collapse;width:100%}
td,th{border-bottom:1px solid #d5dbe1;padding:.4em .6em;text-align:left;vertical-align:top}
td:last-child{overflow-wrap:anywhere}td:first-child{white-space:nowrap}.bad{color:#b3261e;font-weight:600}.mid{color:#9a6700;font-weight:600}.low{color:#4c5a67}
img{max-width:100%;border:1px solid #d5dbe1}figure{margin:1.5em 0}figcaption{color:#4c5a67}"""
_CLASSES = ("bad", "mid", "low")


class Row(NamedTuple):
    """A line of the table; ``level`` 0 is the worst of three."""

    level: int
    word: str
    subject: str
    text: str


class Picture(NamedTuple):
    """A PNG file and what it shows."""

    path: Path
    caption: str


def write_report(
    path: str | Path, title: str, facts: Sequence[str], rows: Sequence[Row], pictures: Sequence[Picture] = ()
) -> Path:
    """Write a page with facts, a table of findings and pictures, which become part of the file; its path."""
    body = [f"<h1>{html.escape(title)}</h1>", *(f"<p>{html.escape(fact)}</p>" for fact in facts)]
    body.append("<h2>Problems, worst first</h2>" if rows else "<h2>No problem was found</h2>")
    if rows:
        body.append(f"<table><tr><th>level</th><th>check</th><th>problem</th></tr>{''.join(map(_row, rows))}</table>")
    body += ["<h2>Pictures</h2>"] if pictures else []
    body += [_figure(p) for p in pictures]
    page = (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f"<style>{_STYLE}</style></head><body>{''.join(body)}</body></html>\n"
    )
    write_text(path, page)
    return Path(path)


def _row(row: Row) -> str:
    cells = (f'<td class="{_CLASSES[row.level]}">{html.escape(row.word)}</td>', *map(_cell, (row.subject, row.text)))
    return f"<tr>{''.join(cells)}</tr>"


def _cell(text: str) -> str:
    return f"<td>{html.escape(text)}</td>"


def _figure(picture: Picture) -> str:
    data = base64.b64encode(picture.path.read_bytes()).decode("ascii")
    caption = html.escape(picture.caption)
    return (
        f'<figure><img alt="{caption}" src="data:image/png;base64,{data}"><figcaption>{caption}</figcaption></figure>'
    )
