"""``--set KEY VALUE ...``: typed changes of single values."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pcdet.config.errors import ConfigError
from pcdet.config.nodes import BASE_KEY, Node, load_base, merge, parse_value
from pcdet.utils.registry import nearest

PLACE = "--set"


def apply_overrides(root: Node, pairs: Sequence[str], roots: Sequence[Path]) -> tuple[Node, list[tuple]]:
    """Apply ``[KEY, VALUE, KEY, VALUE ...]``; returns the new tree and the paths of keys that did not exist before.

    A dotted key may address list elements by index. The value takes the type of the one it replaces: an int serves
    for a float, ``1,2`` and ``[1,2]`` are the same list, ``a:1,b:2`` changes those keys of a mapping.
    ``BLOCK._BASE_CONFIG_ FILE`` lays a YAML upon a block, such as a recipe upon OPTIMIZATION; it is looked for in
    ``roots``.
    """
    if len(pairs) % 2:
        raise ConfigError(f"--set takes pairs of KEY VALUE, but '{pairs[-1]}' has no value")
    new_keys: list[tuple] = []
    for key, text in zip(pairs[0::2], pairs[1::2], strict=True):
        *block, last = key.split(".")
        if last == BASE_KEY:
            root = _laid_upon(root, block, load_base(Node(text, PLACE, 0), list(roots)), key)
        else:
            root = _set(root, [*block, last], text, key, (), new_keys)
    return root, new_keys


def _laid_upon(node: Node, keys: list[str], over: Node, full: str) -> Node:
    """The tree with ``over`` laid upon the block at ``keys``."""
    if not isinstance(node.value, dict):
        raise ConfigError(f"--set {full}: {node.value!r} (set in {node.place}) is no block that a file could change")
    if not keys:
        return merge(node, over)
    if keys[0] not in node.value:
        raise ConfigError(f"--set {full}: there is no key '{keys[0]}'.{nearest(keys[0], node.value)}")
    return Node({**node.value, keys[0]: _laid_upon(node.value[keys[0]], keys[1:], over, full)}, node.file, node.line)


def _set(node: Node, keys: list[str], text: str, full: str, path: tuple, new_keys: list[tuple]) -> Node:
    if not keys:
        return _coerce(node, text, full)
    head, rest = keys[0], keys[1:]
    if isinstance(node.value, list):
        if not head.lstrip("-").isdigit() or not -len(node.value) <= int(head) < len(node.value):
            raise ConfigError(
                f"--set {full}: {'.'.join(map(str, path))} is a list of {len(node.value)} elements; "
                f"'{head}' is not an index from 0 to {len(node.value) - 1}"
            )
        items = list(node.value)
        index = int(head) % len(items)
        items[index] = _set(items[index], rest, text, full, (*path, index), new_keys)
        return Node(items, node.file, node.line)
    if not isinstance(node.value, dict):
        raise ConfigError(f"--set {full}: {'.'.join(map(str, path))} is {node.value!r}, which has no keys below it")
    if head not in node.value and rest:
        raise ConfigError(f"--set {full}: there is no key '{head}'.{nearest(head, node.value)}")
    children = dict(node.value)
    if head not in children:
        new_keys.append((*path, head))
        children[head] = _nodes(_parse(text), PLACE)
    else:
        children[head] = _set(children[head], rest, text, full, (*path, head), new_keys)
    return Node(children, node.file, node.line)


def _coerce(old: Node, text: str, full: str) -> Node:
    if isinstance(old.value, dict):
        return _merge_pairs(old, text, full)
    value = _parse(text)
    if isinstance(old.value, list) and not isinstance(value, list):
        value = [value]
    if isinstance(old.value, str) and not isinstance(value, (str, list)):
        value = text
    if isinstance(old.value, float) and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if not _fits(old.value, value):
        raise ConfigError(
            f"--set {full}: {text} is {_kind(value)}, but {old.value!r} (set in {old.place}) is {_kind(old.value)}"
        )
    return _nodes(value, PLACE)


def _fits(old: Any, value: Any) -> bool:
    if old is None or value is None:
        return True
    if isinstance(old, bool) or isinstance(value, bool):
        return isinstance(old, bool) and isinstance(value, bool)
    if isinstance(old, int) and isinstance(value, float):
        return True  # the schema says whether a fraction is allowed here
    return isinstance(value, type(old))


def _merge_pairs(old: Node, text: str, full: str) -> Node:
    value = _parse(text)
    if isinstance(value, dict):
        given = {str(k): v for k, v in value.items()}
    else:
        parts = [part.split(":", 1) for part in text.split(",")]
        if any(len(part) != 2 for part in parts):
            raise ConfigError(f"--set {full}: a mapping is changed by key:value,key:value, not by '{text}'")
        given = {k.strip(): parse_value(v) for k, v in parts}
    out = dict(old.value)
    for key, item in given.items():
        if key not in out:
            raise ConfigError(f"--set {full}: there is no key '{key}' below it.{nearest(key, out)}")
        item_text = item if isinstance(item, str) else repr(item)
        out[key] = _coerce(out[key], item_text, f"{full}.{key}")
    return Node(out, old.file, old.line)


def _parse(text: str) -> Any:
    value = parse_value(text)
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    if isinstance(value, str) and "," in value and not value.startswith(("[", "{")):
        return [_parse(part.strip()) for part in value.split(",") if part.strip()]
    return value


def _nodes(value: Any, file: str) -> Node:
    if isinstance(value, dict):
        return Node({k: _nodes(v, file) for k, v in value.items()}, file, 0)
    if isinstance(value, (list, tuple)):
        return Node([_nodes(v, file) for v in value], file, 0)
    return Node(value, file, 0)


def _kind(value: Any) -> str:
    names = {bool: "true or false", int: "a whole number", float: "a number", str: "text", list: "a list"}
    return names.get(type(value), f"a {type(value).__name__}")
