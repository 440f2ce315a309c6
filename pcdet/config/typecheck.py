"""Does a YAML value fit a parameter's annotation?"""

import ast

from pcdet.config.nodes import Node
from pcdet.config.source_schema import Option, SourceIndex
from pcdet.utils.registry import nearest

LISTS = {"list", "List", "Sequence", "tuple", "Tuple", "Iterable", "Collection", "set", "frozenset"}
MAPPINGS = {"dict", "Dict", "Mapping", "MutableMapping"}
SCALARS = {"int": "a whole number", "float": "a number", "str": "text", "bool": "true or false"}


class Mismatch(Exception):
    """A value that does not fit; ``node`` is the innermost one at fault."""

    def __init__(self, message: str, node: Node, path: tuple):
        super().__init__(message)
        self.node = node
        self.path = path


def check(node: Node, annotation: ast.expr | None, index: SourceIndex, path: tuple) -> None:
    """Raise :class:`Mismatch` unless the value fits the annotation. Unknown annotations admit everything."""
    if annotation is None:
        return
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        annotation = ast.parse(annotation.value, mode="eval").body
    if isinstance(annotation, ast.BinOp) or _head(annotation) in ("Optional", "Union"):
        _check_union(node, annotation, index, path)
    elif isinstance(annotation, ast.Constant) and annotation.value is None:
        if node.value is not None:
            raise Mismatch(f"{_show(node)} is not null", node, path)
    else:
        _check_named(node, annotation, index, path)


def _head(annotation: ast.expr) -> str:
    if isinstance(annotation, ast.Subscript):
        annotation = annotation.value
    if isinstance(annotation, ast.Attribute):
        return annotation.attr
    return annotation.id if isinstance(annotation, ast.Name) else ""


def _arguments(annotation: ast.expr) -> list[ast.expr]:
    if not isinstance(annotation, ast.Subscript):
        return []
    inner = annotation.slice
    return list(inner.elts) if isinstance(inner, ast.Tuple) else [inner]


def _members(annotation: ast.expr) -> list[ast.expr]:
    if isinstance(annotation, ast.BinOp):
        return [*_members(annotation.left), *_members(annotation.right)]
    if _head(annotation) == "Union":
        return _arguments(annotation)
    if _head(annotation) == "Optional":
        return [*_arguments(annotation), ast.Constant(None)]
    return [annotation]


def _check_union(node: Node, annotation: ast.expr, index: SourceIndex, path: tuple) -> None:
    deepest: Mismatch | None = None
    for member in _members(annotation):
        try:
            return check(node, member, index, path)
        except Mismatch as mismatch:
            if deepest is None or len(mismatch.path) > len(deepest.path):
                deepest = mismatch
    assert deepest is not None
    if len(deepest.path) > len(path):
        raise deepest
    expected = " or ".join(_describe(m, index) for m in _members(annotation))
    raise Mismatch(f"{_show(node)} should be {expected}", node, path)


def _check_named(node: Node, annotation: ast.expr, index: SourceIndex, path: tuple) -> None:
    name, value = _head(annotation), node.value
    if name in SCALARS:
        if not _is_scalar(value, name):
            raise Mismatch(f"{_show(node)} should be {SCALARS[name]}", node, path)
    elif name == "Literal":
        allowed = [a.value for a in _arguments(annotation) if isinstance(a, ast.Constant)]
        if value not in allowed:
            raise Mismatch(
                f"{_show(node)} is not one of {', '.join(map(str, allowed))}.{_near(value, allowed)}", node, path
            )
    elif name in LISTS:
        _check_list(node, annotation, index, path)
    elif name in MAPPINGS:
        _check_mapping(node, annotation, index, path)
    elif name in index.aliases and name not in index.classes:
        check(node, index.aliases[name], index, path)
    else:
        options = index.typed_dict(name)
        if options is not None:
            check_block(node, options, index, path, name)


def _near(value, allowed) -> str:
    return nearest(value, allowed) if isinstance(value, str) else ""


def _is_scalar(value, name: str) -> bool:
    if name == "bool":
        return isinstance(value, bool)
    if name == "str":
        return isinstance(value, str)
    if isinstance(value, bool):
        return False
    return isinstance(value, int) or (name == "float" and isinstance(value, float))


def _check_list(node: Node, annotation: ast.expr, index: SourceIndex, path: tuple) -> None:
    if not isinstance(node.value, list):
        raise Mismatch(f"{_show(node)} should be {_describe(annotation, index)}", node, path)
    arguments = _arguments(annotation)
    fixed = _head(annotation) in ("tuple", "Tuple") and not any(
        isinstance(a, ast.Constant) and a.value is Ellipsis for a in arguments
    )
    if fixed and arguments:
        if len(arguments) != len(node.value):
            raise Mismatch(f"{_show(node)} should have {len(arguments)} elements", node, path)
        for i, (child, wanted) in enumerate(zip(node.value, arguments, strict=True)):
            check(child, wanted, index, (*path, i))
        return
    for i, child in enumerate(node.value):
        check(child, arguments[0] if arguments else None, index, (*path, i))


def _check_mapping(node: Node, annotation: ast.expr, index: SourceIndex, path: tuple) -> None:
    if not isinstance(node.value, dict):
        raise Mismatch(f"{_show(node)} should be a mapping of keys to values", node, path)
    arguments = _arguments(annotation)
    if len(arguments) == 2:
        for key, child in node.value.items():
            check(child, arguments[1], index, (*path, key))


def check_block(
    node: Node, options: dict[str, Option], index: SourceIndex, path: tuple, owner: str, ignored=()
) -> None:
    """Check a mapping whose keys are known. Raises :class:`Mismatch`."""
    if not isinstance(node.value, dict):
        raise Mismatch(f"{_show(node)} should be a mapping with the keys {', '.join(options)}", node, path)
    for key, child in node.value.items():
        if key == "NAME" and key not in options or key in ignored:
            continue
        if key not in options:
            raise Mismatch(f"{owner} takes no option {key}.{nearest(key, options)}", child, (*path, key))
        check(child, options[key].annotation, index, (*path, key))
    for key, option in options.items():
        if option.required and key not in node.value:
            raise Mismatch(f"{owner} needs the option {key}, which is not given", node, path)


def _describe(annotation: ast.expr, index: SourceIndex) -> str:
    name = _head(annotation)
    if isinstance(annotation, ast.Constant) and annotation.value is None:
        return "null"
    if name in SCALARS:
        return SCALARS[name]
    if name in LISTS:
        arguments = [a for a in _arguments(annotation) if not isinstance(a, ast.Constant)]
        inner = _describe(arguments[0], index) if arguments else ""
        plural = {"a number": "numbers", "a whole number": "whole numbers", "text": "names"}.get(inner, inner)
        return f"a list of {plural}" if plural else "a list"
    if name in index.aliases and name not in index.classes:
        return _describe(index.aliases[name], index)
    if name in MAPPINGS or index.typed_dict(name) is not None:
        return "a mapping"
    return ast.unparse(annotation)


def _show(node: Node) -> str:
    text = repr(node.plain())
    return text if len(text) <= 60 else text[:57] + "..."
