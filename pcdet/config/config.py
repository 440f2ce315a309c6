"""From a YAML file and ``--set`` to checked settings."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from pcdet.config.errors import ConfigError
from pcdet.config.nodes import Node, load_tree
from pcdet.config.overrides import apply_overrides
from pcdet.config.schema import check_config, check_data
from pcdet.config.settings import Settings

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Config:
    """Checked settings that remember where each came from."""

    settings: Settings
    path: Path
    tree: Node

    @property
    def tag(self) -> str:
        """The file's name without suffix; a folder of the output is called so."""
        return self.path.stem

    @property
    def exp_group_path(self) -> str:
        """The file's folder below ``cfgs``, such as ``kitti_models``; elsewhere, the name of its folder."""
        parts = self.path.resolve().parent.parts
        if "cfgs" in parts:
            below = parts[len(parts) - parts[::-1].index("cfgs") :]
            return "/".join(below)
        return parts[-1]

    def origin(self, *keys: str | int) -> str:
        """``file:line`` that set the value at a key path."""
        node = self.tree
        for key in keys:
            node = node.value[key]
        return node.place

    def dump(self) -> str:
        """The resolved settings as YAML that can be loaded again."""
        return yaml.safe_dump(self.tree.plain(), sort_keys=False, default_flow_style=None, width=120)

    def describe(self) -> str:
        """Every resolved value with the file and line that set it, one a line."""
        rows = []
        for path, node in self.tree.walk():
            is_branch = isinstance(node.value, dict) or any(isinstance(c.value, (dict, list)) for c in _items(node))
            if path and not (is_branch and node.value) and not _inside_flat_list(self.tree, path):
                rows.append((".".join(map(str, path)), repr(node.plain()), _relative(node.place)))
        width = min(max((len(f"{k}: {v}") for k, v, _ in rows), default=0), 90)
        return "\n".join(f"{f'{k}: {v}':<{width}}  # {place}" for k, v, place in rows)


def _items(node: Node) -> list[Node]:
    return node.value if isinstance(node.value, list) else []


def _inside_flat_list(tree: Node, path: tuple) -> bool:
    """Elements of a list of scalars are shown with their list, not one by one."""
    for key in path[:-1]:
        tree = tree.value[key]
    return isinstance(tree.value, list) and not any(isinstance(c.value, (dict, list)) for c in tree.value)


def _relative(place: str) -> str:
    return place.removeprefix(f"{ROOT}/")


def _roots() -> list[Path]:
    return [ROOT, ROOT / "tools", Path.cwd()]


def _load(path: str | Path) -> tuple[Path, Node]:
    path = Path(path)
    tried = [path] if path.is_absolute() else [path, *(root / path for root in _roots())]
    for candidate in tried:
        if candidate.is_file():
            return candidate, load_tree(candidate, _roots())
    places = "".join(f"\n  {p}" for p in dict.fromkeys(tried))
    raise ConfigError(f"The configuration '{path}' is not found. Tried:{places}")


def load_config(path: str | Path, overrides: Sequence[str] | None = None) -> Config:
    """Read, resolve and check a model's YAML.

    ``path`` may be relative to the working directory, the repository root or ``tools/``. ``overrides`` are the words
    after ``--set``. Raises :class:`ConfigError` that names file, line, key path and, for a typo, the nearest name.
    """
    path, tree = _load(path)
    tree, new_keys = apply_overrides(tree, overrides or [], _roots())
    check_config(tree, new_keys)
    return Config(Settings(tree.plain()), path, tree)


def load_dataset_config(path: str | Path, overrides: Sequence[str] | None = None) -> Settings:
    """Read, resolve and check a data set's YAML (what stands under DATA_CONFIG in a model's)."""
    _, tree = _load(path)
    tree, _ = apply_overrides(tree, overrides or [], _roots())
    check_data(tree, path=())
    return Settings(tree.plain())


def load_settings(path: str | Path, overrides: Sequence[str] | None = None) -> Settings:
    """A model's settings; of a data set's own YAML those with DATA_CONFIG alone. Raises as the functions above."""
    _, tree = _load(path)
    if "DATA_CONFIG" in tree.value:
        return load_config(path, overrides).settings
    return Settings(DATA_CONFIG=load_dataset_config(path, overrides))


def load_data_settings(path: str | Path) -> Settings:
    """A data set's settings, from its own YAML or from a model's that names it under DATA_CONFIG. Raises as both."""
    return load_settings(path).DATA_CONFIG
