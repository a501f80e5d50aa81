"""The SVG files of matplotlib as the inside of a page's: with names and colours of its own, and a third as large."""

import re
from collections.abc import Mapping

DIGITS = 1  # of a point behind the comma: a sixth of what a screen shows


def inside(svg: str, name: str, roles: Mapping[str, str]) -> tuple[str, str]:
    """The view box and the markup of an SVG file, with names that no other figure's of the page has.

    Args:
        svg: The file.
        name: Of the figure.
        roles: What stands for each colour in the page's style.
    """
    svg_tag = re.search(r'<svg [^>]*viewBox="([^"]*)"[^>]*>', svg)
    assert svg_tag is not None, "matplotlib writes a view box"
    body = svg[svg_tag.end() : svg.rindex("</svg>")]
    body = re.sub(r"<style.*?</style>|<!--.*?-->", "", body, flags=re.DOTALL)
    body = re.sub(r'\bid="', f'id="{name}-', body)
    body = re.sub(r'\b(?:xlink:)?href="#', f'href="#{name}-', body)
    body = body.replace("url(#", f"url(#{name}-")
    for colour, role in roles.items():
        body = body.replace(colour, role)
    return svg_tag.group(1), smaller(body)


def smaller(body: str) -> str:
    """Markup that looks the same, without names that nothing refers to and digits that nobody sees."""
    body = re.sub(r" font-family: [^;]*;", "", body)  # the page's
    body = re.sub(r' transform="rotate\(-0 [^)]*\)"', "", body)
    used = set(re.findall(r'(?:href="#|url\(#)([^")]+)', body))
    body = re.sub(r' id="([^"]*)"', lambda found: found[0] if found[1] in used else "", body)
    body = re.sub(r"<[^>]*>", lambda found: rounded(" ".join(found[0].split())), body)
    body = re.sub(r">\s+<", "><", body).strip()
    body = flattened(re.sub(r"<g([^>]*)>((?:<use [^>]*/>)+)</g>", styled_once, body))
    return re.sub(r'<path d="[^"]*"( [^>]*)/>(?:<path d="[^"]*"\1/>)+', drawn_alike, body)


def rounded(tag: str) -> str:
    """A tag whose numbers have fewer digits; words between tags are not touched."""
    return re.sub(r"(?<![\w.#-])-?\d+\.\d{2,}", lambda found: f"{float(found[0]):.{DIGITS}f}".removesuffix(".0"), tag)


def styled_once(found: re.Match[str]) -> str:
    """A group of markers that all look alike, their style told once."""
    styles = set(re.findall(r' style="[^"]*"', found[2]))
    if len(styles) != 1:
        return found[0]
    [style] = styles
    return f"<g{found[1]}{style}>{found[2].replace(style, '')}</g>"


def drawn_alike(found: re.Match[str]) -> str:
    """Lines that follow each other and look alike, in a group that tells it once."""
    return f"<g{found[1]}>{found[0].replace(found[1], '')}</g>"


def flattened(body: str) -> str:
    """Without groups that say nothing."""
    while True:
        flatter = re.sub(r"<g>((?:(?!</?g[ >]).)*)</g>", r"\1", body).replace("<defs></defs>", "")
        if flatter == body:
            return body
        body = flatter
