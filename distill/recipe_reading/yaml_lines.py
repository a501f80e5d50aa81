"""The line of every key of a YAML file, and the mistakes that stand in its text rather than in its values."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import GrammarParseError

KeyPath: TypeAlias = tuple[str | int, ...]

MISSING = "???"  # OmegaConf's mark of a value that is not there
TEXT_TAG = "tag:yaml.org,2002:str"
TAGS = {f"tag:yaml.org,2002:{kind}" for kind in ("map", "seq", "str", "int", "float", "bool", "null", "timestamp")}


@dataclass(frozen=True)
class Mistake:
    """One thing wrong with one key.

    Attributes:
        path: The key; () is the whole file.
        text: The sentence that follows the key.
        line: Where in the file, if not where the key stands.
    """

    path: KeyPath
    text: str
    line: int | None = None


@dataclass
class YamlText:
    """What a YAML file says.

    Attributes:
        text: YAML with one value per key; a value nobody can use stands as `???`.
        lines: The line, from 1, of every key and list item.
        mistakes: What was dropped or replaced in the text.
    """

    text: str = ""
    lines: dict[KeyPath, int] = field(default_factory=dict)
    mistakes: list[Mistake] = field(default_factory=list)


def read_yaml(text: str) -> YamlText:
    """The lines and mistakes of a YAML text whose outermost level holds keys.

    Raises:
        yaml.YAMLError: If the text is not YAML, or its outermost level holds something else.
    """
    result = YamlText()
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    if isinstance(root, yaml.MappingNode):
        result.text = yaml.serialize(_mended(root, (), (), result)) or ""
    elif root is not None:
        kind = "list" if isinstance(root, yaml.SequenceNode) else "single value"
        raise yaml.MarkedYAMLError(
            problem=f"expected `key: value` lines, but got a {kind}", problem_mark=root.start_mark
        )
    return result


def dotted(path: KeyPath) -> str:
    """A key as people write it: data.prompts[1].path."""
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).removeprefix(".")


def grammar_problem(text: str) -> str | None:
    """What is wrong with the `${...}` of a text, None if it can be read."""
    try:
        OmegaConf.create({"key": text})
    except GrammarParseError:
        return f"must be text with a whole ${{key}}, got {text!r}. Close the brace, or write \\${{ to mean the signs."
    return None


def _mended(node: yaml.Node, path: KeyPath, above: tuple[yaml.Node, ...], result: YamlText) -> yaml.Node:
    """The node without its mistakes; they and the lines of everything below it go into result."""
    problem = _problem(node, above)
    if problem is not None:
        result.mistakes.append(Mistake(path, problem, node.start_mark.line + 1))
        return yaml.ScalarNode(TEXT_TAG, MISSING)
    if isinstance(node, yaml.MappingNode):
        for key, _ in (pairs := list(_readable_pairs(node, path, result))):
            result.lines[*path, key.value] = key.start_mark.line + 1
        node.value = [(key, _mended(value, (*path, key.value), (*above, node), result)) for key, value in pairs]
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            result.lines[*path, index] = item.start_mark.line + 1
        node.value = [_mended(item, (*path, i), (*above, node), result) for i, item in enumerate(node.value)]
    return node


def _problem(node: yaml.Node, above: tuple[yaml.Node, ...]) -> str | None:
    if any(node is parent for parent in above):
        return "must not hold itself, got an alias of a section around it. Write the values out."
    if node.tag not in TAGS:
        return f"must be a plain value, got the YAML tag {node.tag}. Remove the tag."
    if isinstance(node, yaml.ScalarNode) and "${" in node.value:
        return grammar_problem(node.value)
    return None


def _readable_pairs(
    node: yaml.MappingNode, path: KeyPath, result: YamlText
) -> Iterator[tuple[yaml.ScalarNode, yaml.Node]]:
    """The pairs whose key is text and stands for the first time."""
    first_lines: dict[str, int] = {}
    for key, value in node.value:
        line = key.start_mark.line + 1
        if not isinstance(key, yaml.ScalarNode) or key.tag != TEXT_TAG:
            shown = f"`{key.value}`" if isinstance(key, yaml.ScalarNode) else "a list or section"
            result.mistakes.append(Mistake(path, f"must have plain text as keys, got {shown}. Quote it.", line))
        elif key.value in first_lines:
            lines = f"lines {first_lines[key.value]} and {line}"
            result.mistakes.append(Mistake((*path, key.value), f"must stand once, got {lines}. Keep one.", line))
        else:
            first_lines[key.value] = line
            yield key, value
