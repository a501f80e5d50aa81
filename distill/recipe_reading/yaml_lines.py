"""The line of every key of a YAML file, and the mistakes that stand in its text rather than in its values."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

import yaml

from architectures.settings.requirements import shown
from distill.recipe_reading.text_rules import filling_problem, unusable_text

KeyPath: TypeAlias = tuple[str | int, ...]

MOST_VALUES = 4000  # of a recipe; those behind aliases count wherever they stand
MOST_NESTED = 32  # sections and lists inside each other
MOST_MISTAKES = 30  # told of one recipe

MISSING = "???"  # OmegaConf's mark of a value that is not there
TEXT_TAG = "tag:yaml.org,2002:str"
NUMBER_CHARACTERS = {"tag:yaml.org,2002:int": 18, "tag:yaml.org,2002:float": 40}  # at most; 18 digits fit 64 bits
TAGS = {f"tag:yaml.org,2002:{kind}" for kind in ("map", "seq", "str", "int", "float", "bool", "null", "timestamp")}
RESOLVER = yaml.resolver.Resolver()


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
        num_values: How many it holds; one behind aliases is counted wherever it stands.
    """

    text: str = ""
    lines: dict[KeyPath, int] = field(default_factory=dict)
    mistakes: list[Mistake] = field(default_factory=list)
    num_values: int = 0


def read_yaml(text: str) -> YamlText:
    """The lines and mistakes of a YAML text whose outermost level holds keys.

    Raises:
        yaml.YAMLError: If the text is not YAML, holds too many values, or its outermost level holds something else.
    """
    result = YamlText()
    root = _composed(text)
    if isinstance(root, yaml.MappingNode):
        result.text = yaml.serialize(_mended(root, (), (), result)) or ""
    elif root is not None:
        kind = "list" if isinstance(root, yaml.SequenceNode) else "single value"
        raise yaml.MarkedYAMLError(
            problem=f"expected `key: value` lines, but got a {kind}", problem_mark=root.start_mark
        )
    return result


def read_yaml_value(text: str) -> YamlText:
    """The mistakes of a YAML text of any value, and the text without them.

    Raises:
        yaml.YAMLError: If the text is not YAML, or holds too many values.
    """
    result = YamlText()
    root = _composed(text)
    if root is not None:
        result.text = yaml.serialize(_mended(root, (), (), result)) or ""
    return result


def dotted(path: KeyPath) -> str:
    """A key as people write it: data.prompts[1].path."""
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).removeprefix(".")


def _composed(text: str) -> yaml.Node | None:
    try:
        return yaml.compose(text, Loader=yaml.SafeLoader)
    except RecursionError as error:
        raise yaml.MarkedYAMLError(problem=f"nested more than {MOST_NESTED} deep") from error


def _mended(node: yaml.Node, path: KeyPath, above: tuple[yaml.Node, ...], result: YamlText) -> yaml.Node:
    """The node without its mistakes; they and the lines of everything below it go into result.

    Raises:
        yaml.YAMLError: If there are too many values.
    """
    result.num_values += 1
    if result.num_values > MOST_VALUES:
        raise yaml.MarkedYAMLError(problem=f"more than {MOST_VALUES:,} values", problem_mark=node.start_mark)
    if len(result.mistakes) > MOST_MISTAKES:  # no more are told
        return yaml.ScalarNode(TEXT_TAG, MISSING)
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
    if isinstance(node, yaml.ScalarNode):
        return _scalar_problem(node)
    if len(above) >= MOST_NESTED:
        return f"must be nested at most {MOST_NESTED} deep, got more. Write it flatter."
    return None


def _scalar_problem(node: yaml.ScalarNode) -> str | None:
    if node.tag != TEXT_TAG and node.tag != _natural_tag(node.value):
        return f"must be a plain value, got the YAML tag {node.tag} of {shown(node.value)}. Remove the tag."
    most = NUMBER_CHARACTERS.get(node.tag)
    if most is not None and len(node.value) > most:
        return f"must be a number of at most {most} characters, got {shown(node.value)}. Write it shorter."
    return unusable_text(node.value) or (filling_problem(node.value) if "${" in node.value else None)


def _natural_tag(text: str) -> str:
    """What YAML takes a text for that has neither tag nor quotes."""
    return RESOLVER.resolve(yaml.ScalarNode, text, (True, False))


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
        elif (problem := unusable_text(key.value)) is not None:
            result.mistakes.append(Mistake(path, f"must have keys that are text: {problem}", line))
        elif key.value in first_lines:
            lines = f"lines {first_lines[key.value]} and {line}"
            result.mistakes.append(Mistake((*path, key.value), f"must stand once, got {lines}. Keep one.", line))
        else:
            first_lines[key.value] = line
            yield key, value
