"""Hooks for mkdocs, see mkdocs.yml."""


def on_page_content(html: str, **_: object) -> str:
    """Unescape pipes: GitHub needs `\\|` for a pipe in a table, also inside code."""
    return html.replace("\\|", "|")
