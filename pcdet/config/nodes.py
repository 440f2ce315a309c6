"""YAML files as trees that remember where each value came from."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from pcdet.config.errors import ConfigError

BASE_KEY = "_BASE_CONFIG_"


@dataclass(frozen=True)
class Node:
    """A value of the tree: a ``dict[str, Node]``, a ``list[Node]`` or a scalar, with the place that set it."""

    value: Any
    file: str
    line: int

    @property
    def place(self) -> str:
        return f"{self.file}:{self.line}" if self.line else self.file

    def plain(self) -> Any:
        """The value without places."""
        if isinstance(self.value, dict):
            return {k: v.plain() for k, v in self.value.items()}
        if isinstance(self.value, list):
            return [v.plain() for v in self.value]
        return self.value

    def walk(self, path: tuple = ()) -> Iterator[tuple[tuple, "Node"]]:
        """Every node below this one with its key path, parents first."""
        yield path, self
        if isinstance(self.value, dict):
            for key, child in self.value.items():
                yield from child.walk((*path, key))
        elif isinstance(self.value, list):
            for index, child in enumerate(self.value):
                yield from child.walk((*path, index))


class _Loader(yaml.SafeLoader):
    """YAML 1.2's scalars: 1e-3 is a number, only true and false are booleans, 012 and 1:30 are text."""

    yaml_implicit_resolvers: dict = {}


_Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), "tTfF")
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:null", re.compile(r"^(?:~|null|Null|NULL|None|)$"), ["~", "n", "N", ""]
)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:int", re.compile(r"^[-+]?(?:0|[1-9][0-9_]*|0x[0-9a-fA-F]+)$"), "-+0123456789"
)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(
        r"^[-+]?(?:(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|[-+]?[0-9]+[eE][-+]?[0-9]+|\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
    ),
    "-+0123456789.",
)


def _construct_float(loader: _Loader, node: yaml.ScalarNode) -> float:
    text = node.value.lower().replace("_", "")
    return float(text.replace(".inf", "inf").replace(".nan", "nan"))


_Loader.add_constructor("tag:yaml.org,2002:float", _construct_float)


def parse_value(text: str) -> Any:
    """The value of a YAML scalar or flow list, typed as in a file."""
    try:
        return yaml.load(text, Loader=_Loader)  # noqa: S506  (a subclass of SafeLoader)
    except yaml.YAMLError as error:
        raise ConfigError(f"--set: '{text}' is not a YAML value: {error}") from error


def parse_file(path: Path) -> Node:
    """Read one YAML file, without following ``_BASE_CONFIG_``.

    Raises :class:`ConfigError` with file and line for bad syntax, a duplicate key, or a file that is not a mapping.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{path} is not text in UTF-8 ({error.reason} at byte {error.start}); save it in that encoding"
        ) from error
    loader = _Loader(text)
    try:
        root = loader.get_single_node()
        if root is None:
            raise ConfigError(f"{path}: the file is empty")
        if not isinstance(root, yaml.MappingNode):
            raise ConfigError(f"{path}:1: a configuration is a mapping of keys to values")
        return _convert(loader, root, str(path), ())
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f"{path}:{mark.line + 1}" if mark else str(path)
        raise ConfigError(f"{place}: {error.problem or error}") from error
    finally:
        loader.dispose()


def _convert(loader: _Loader, node: yaml.Node, file: str, path: tuple) -> Node:
    line = node.start_mark.line + 1
    if isinstance(node, yaml.SequenceNode):
        return Node([_convert(loader, v, file, (*path, i)) for i, v in enumerate(node.value)], file, line)
    if not isinstance(node, yaml.MappingNode):
        return Node(loader.construct_object(node), file, line)
    loader.flatten_mapping(node)
    out: dict[str, Node] = {}
    for key_node, value_node in node.value:
        key = loader.construct_object(key_node)
        key_line = key_node.start_mark.line + 1
        if key in out:
            where = ".".join(map(str, (*path, key)))
            raise ConfigError(f"{file}:{key_line}: the key {where} stands twice, first in line {out[key].line}")
        child = _convert(loader, value_node, file, (*path, key))
        out[key] = Node(child.value, file, key_line)
    return Node(out, file, line)


def merge(base: Node, over: Node) -> Node:
    """``over`` laid upon ``base``: mappings are merged key by key, everything else, lists too, is replaced whole."""
    if not (isinstance(base.value, dict) and isinstance(over.value, dict)):
        return over
    out = dict(base.value)
    for key, child in over.value.items():
        out[key] = merge(out[key], child) if key in out else child
    return Node(out, over.file, over.line)


def resolve_bases(node: Node, roots: list[Path], chain: tuple[Path, ...]) -> Node:
    """Replace every ``_BASE_CONFIG_`` in the tree, at any level, by what it names with the tree laid upon it.

    A base is a file, or with ``file.yaml#MODEL`` what stands below a key (or key path) of it.
    """
    if not isinstance(node.value, dict):
        return node
    own = {k: resolve_bases(v, roots, chain) for k, v in node.value.items() if k != BASE_KEY}
    resolved = Node(own, node.file, node.line)
    base = node.value.get(BASE_KEY)
    if base is None:
        return resolved
    return merge(load_base(base, roots, chain), resolved)


def load_tree(path: Path, roots: list[Path], chain: tuple[Path, ...] = (), asked_by: str = "") -> Node:
    """Read a file and everything it is based on."""
    real = path.resolve()
    if real in chain:
        circle = " -> ".join(p.name for p in (*chain, real))
        raise ConfigError(f"{asked_by}: {BASE_KEY} goes round in a circle: {circle}")
    return resolve_bases(parse_file(path), roots, (*chain, real))


def load_base(base: Node, roots: list[Path], chain: tuple[Path, ...] = ()) -> Node:
    """What a ``_BASE_CONFIG_`` names: a file (beside the one it stands in, or below ``roots``) or a part of it."""
    if not isinstance(base.value, str):
        raise ConfigError(f"{base.place}: {BASE_KEY} names a file, but {base.value!r} is not a path")
    name, _, keys = base.value.partition("#")
    tree = load_tree(_find_base(name, base, roots), roots, chain, base.place)
    for key in keys.split(".") if keys else ():
        if not isinstance(tree.value, dict) or key not in tree.value:
            raise ConfigError(f"{base.place}: {BASE_KEY} '{base.value}': {tree.file} has no such key")
        tree = tree.value[key]
    return tree


def _find_base(name: str, asked_by: Node, roots: list[Path]) -> Path:
    tried = [Path(asked_by.file).parent / name, *(root / name for root in roots)]
    for candidate in tried:
        if candidate.is_file():
            return candidate
    places = "".join(f"\n  {p}" for p in dict.fromkeys(tried))
    raise ConfigError(f"{asked_by.place}: {BASE_KEY} '{name}' is not found. Tried:{places}")
