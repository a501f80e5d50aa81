"""Pages that hold what a program wrote between two marks."""


def between(text: str, begin: str, end: str, written: str) -> str:
    """A page with other words between its marks."""
    before, rest = text.split(begin)
    _, after = rest.split(end)
    return f"{before}{begin}\n\n{written}\n\n{end}{after}"
