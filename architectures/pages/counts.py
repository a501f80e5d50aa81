"""Numbers of things in words, wherever a sentence or a table tells them."""


def number_of(count: int, thing: str, things: str = "") -> str:
    """1 layer, 2 layers, 1,000 layers; 1 pass, 2 passes where the word for several is given."""
    return f"{count:,} {thing if count == 1 else things or f'{thing}s'}"
