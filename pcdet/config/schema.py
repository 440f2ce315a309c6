"""Which class owns which block of a configuration."""

from collections.abc import Set

from pcdet.config.errors import ConfigError
from pcdet.config.nodes import Node
from pcdet.config.source_schema import SourceIndex, source_index
from pcdet.config.typecheck import Mismatch, check_block
from pcdet.utils.registry import nearest

TOP = ("CLASS_NAMES", "DATA_CONFIG", "MODEL", "OPTIMIZATION")
# Keyword parameters of a data set that the builder gives, not the YAML.
DATASET_CONTEXT = {"CLASS_NAMES", "TRAINING", "SEED", "LOGGER"}

# Classes of OpenPCDet's models that look at camera images.
IMAGE_CLASSES = {"CaDDN", "ImageVFE", "Conv2DCollapse", "VoxelBackBone8xFocal"}


def check_config(root: Node, new_keys: list[tuple] = ()) -> None:
    """Check a whole configuration. Raises :class:`ConfigError` with file, line, key path and the nearest valid name.

    ``new_keys`` are paths that ``--set`` added: they are allowed only where a schema knows the key.
    """
    index = source_index()
    for key, child in root.value.items():
        if key not in TOP:
            raise ConfigError(f"{child.place}: {key}: unknown key.{nearest(key, TOP)}")
    for key in TOP:
        if key not in root.value:
            raise ConfigError(f"{root.file}: the key {key} is missing; a configuration has {', '.join(TOP)}")
    names = root.value["CLASS_NAMES"]
    if not isinstance(names.value, list) or not all(isinstance(n.value, str) for n in names.value) or not names.value:
        raise ConfigError(f"{names.place}: CLASS_NAMES: {names.plain()!r} should be a list of names")
    if len(set(names.plain())) != len(names.value):
        raise ConfigError(f"{names.place}: CLASS_NAMES: a class stands twice in {names.plain()}")
    for key in TOP[1:]:
        if not isinstance(root.value[key].value, dict):
            raise ConfigError(f"{root.value[key].place}: {key} should be a mapping of keys to values")
    _require_no_images(root.value["MODEL"], "MODEL")
    check_data(root.value["DATA_CONFIG"], index)
    _check_model(root.value["MODEL"], index)
    _checked(root.value["OPTIMIZATION"], "Optimization", index, ("OPTIMIZATION",))
    _check_new_keys(root, new_keys)


def check_data(node: Node, index: SourceIndex | None = None, path: tuple = ("DATA_CONFIG",)) -> None:
    """Check a data configuration alone."""
    index = index or source_index()
    class_name = _named(node, "DATASET", "DATASETS", "dataset", index, path)
    _checked(node, class_name, index, path, DATASET_CONTEXT)
    augmentor = node.value.get("DATA_AUGMENTOR")
    blocks = augmentor.value.get("AUG_CONFIG_LIST") if augmentor and isinstance(augmentor.value, dict) else augmentor
    _check_transforms(blocks, "AUGMENTS", "augmentor", index, (*path, "DATA_AUGMENTOR", "AUG_CONFIG_LIST"))
    _check_transforms(node.value.get("DATA_PROCESSOR"), "PROCESSORS", "processor", index, (*path, "DATA_PROCESSOR"))


def _require_no_images(node: Node, path: str) -> None:
    """Say of a model that needs camera images that it is known but not here, before its data are checked."""
    for key, child in node.value.items():
        if key == "NAME" and child.value in IMAGE_CLASSES:
            raise ConfigError(
                f"{child.place}: {path}.NAME: {child.value} belongs to a model that looks at camera images (CaDDN, "
                "Focals Conv). Only models of LiDAR points are supported so far"
            )
        if isinstance(child.value, dict):
            _require_no_images(child, f"{path}.{key}")


def _check_transforms(node: Node | None, registry: str, kind: str, index: SourceIndex, path: tuple) -> None:
    if node is None or not isinstance(node.value, list):
        return
    for i, block in enumerate(node.value):
        class_name = _named(block, "NAME", registry, kind, index, (*path, i))
        _checked(block, class_name, index, (*path, i))


def _check_model(node: Node, index: SourceIndex) -> None:
    path = ("MODEL",)
    class_name = _named(node, "NAME", "MODELS", "model", index, path)
    slots = {label: variable for label, variable in index.labels.items() if label.isupper()}
    rest = {}
    for key, child in node.value.items():
        if key not in slots:
            rest[key] = child
            continue
        slot_class = _named(child, "NAME", slots[key], key, index, (*path, key))
        _checked(child, slot_class, index, (*path, key))
    known = index.options(class_name)
    for key, child in rest.items():
        if key != "NAME" and key not in known and key not in index.ignored(class_name):
            raise ConfigError(
                f"{child.place}: MODEL.{key}: {class_name} has no such slot or option.{nearest(key, [*slots, *known])}"
            )
    _checked(Node(rest, node.file, node.line), class_name, index, path)


def _named(node: Node, key: str, registry: str, kind: str, index: SourceIndex, path: tuple) -> str:
    """The class that a block names."""
    where = ".".join(map(str, path))
    if not isinstance(node.value, dict) or key not in node.value:
        raise ConfigError(f"{node.place}: {where}: the block has no {key}, which says what {kind} it is for")
    name = node.value[key]
    known = index.registered.get(registry, {})
    if name.value not in known:
        raise ConfigError(
            f"{name.place}: {where}.{key}: no {kind} is called '{name.value}'.{nearest(name.value, known)}"
        )
    return known[name.value]


def _checked(node: Node, class_name: str, index: SourceIndex, path: tuple, context: Set[str] = frozenset()) -> None:
    options = {k: v for k, v in index.options(class_name).items() if k not in context}
    try:
        check_block(node, options, index, path, class_name, index.ignored(class_name))
    except Mismatch as mismatch:
        where = ".".join(map(str, mismatch.path))
        raise ConfigError(f"{mismatch.node.place}: {where}: {mismatch}") from None


def _check_new_keys(root: Node, new_keys: list[tuple]) -> None:
    """A key that --set adds deep inside plain data was checked by nobody: refuse it."""
    for path in new_keys:
        parent = root
        for key in path[:-1]:
            parent = parent.value[key]
        governed = len(path) <= 2 or (path[0] == "MODEL" and len(path) <= 3) or path[-2] in range(1000)
        if not governed:
            others = [k for k in parent.value if k != path[-1]]
            raise ConfigError(f"--set {'.'.join(map(str, path))}: there is no such key.{nearest(path[-1], others)}")
