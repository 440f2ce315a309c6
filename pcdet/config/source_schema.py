"""The schema of the configuration, read from constructors without importing them.

A block of the YAML names a class; the class's keyword-only parameters are the block's keys. Reading them from the
source text (``ast``) instead of from the imported class lets a typo be reported in milliseconds, before torch loads.
"""

import ast
import functools
from dataclasses import dataclass
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]
ROOMS = ("models", "datasets", "train_utils")


@dataclass(frozen=True)
class Option:
    """One key of a block."""

    annotation: ast.expr | None
    required: bool


@dataclass(frozen=True)
class ClassSource:
    """What a class's source says about its options."""

    name: str
    file: Path
    node: ast.ClassDef


class SourceIndex:
    """Classes, registries and registered names of the rooms whose classes YAML can name."""

    def __init__(self, files: list[Path]):
        self.classes: dict[str, ClassSource] = {}
        self.aliases: dict[str, ast.expr] = {}  # module-level names for annotations, such as Pair = list[float]
        self.registered: dict[str, dict[str, str]] = {}  # registry variable -> NAME in YAML -> class name
        self.labels: dict[str, str] = {}  # label given to Registry("...") -> registry variable
        for file in files:
            self._read(file)

    def _read(self, file: Path) -> None:
        for node in ast.parse(file.read_text(encoding="utf-8"), str(file)).body:
            if isinstance(node, ast.ClassDef):
                self._add(ClassSource(node.name, file, node))
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                self._assign(node.targets[0].id, node.value)
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
                self._assign(node.target.id, node.value)
            elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and node.value.args:
                if isinstance(node.value.args[0], ast.Name):
                    self._register(node.value.func, node.value.args[0].id)

    def _add(self, source: ClassSource) -> None:
        """Annotations name blocks without their module, so that the name of a typed block must be the only one."""
        known = self.classes.get(source.name)
        if known is not None:
            typed = self._is_typed(known) or self._is_typed(source)
            assert not typed, f"{source.name} stands in {known.file} and in {source.file}"
        self.classes[source.name] = source
        for decorator in source.node.decorator_list:
            self._register(decorator, source.name)

    def _is_typed(self, source: ClassSource) -> bool:
        """Is it a ``TypedDict``, or does it extend one?"""
        bases = [ast.unparse(base) for base in source.node.bases]
        return any(base.endswith("TypedDict") or self.typed_dict(base) is not None for base in bases)

    def _assign(self, name: str, value: ast.expr) -> None:
        if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "Registry":
            if value.args and isinstance(value.args[0], ast.Constant):
                self.labels[str(value.args[0].value)] = name
        else:
            self.aliases[name] = value

    def _register(self, decorator: ast.expr, class_name: str) -> None:
        """Read ``REGISTRY.register`` and ``REGISTRY.register(name="x")``."""
        name = class_name
        if isinstance(decorator, ast.Call):
            for keyword in decorator.keywords:
                if keyword.arg == "name" and isinstance(keyword.value, ast.Constant):
                    name = str(keyword.value.value)
            decorator = decorator.func
        if isinstance(decorator, ast.Attribute) and decorator.attr == "register":
            if isinstance(decorator.value, ast.Name):
                self.registered.setdefault(decorator.value.id, {})[name] = class_name

    def options(self, class_name: str) -> dict[str, Option]:
        """Keys (upper case) of the class's constructor or, for a dataclass, of its fields."""
        source = self.classes.get(class_name)
        if source is None:
            return {}
        for item in source.node.body:
            if isinstance(item, ast.FunctionDef) and item.name == "__init__":
                own = {
                    arg.arg.upper(): Option(arg.annotation, default is None)
                    for arg, default in zip(item.args.kwonlyargs, item.args.kw_defaults, strict=True)
                }
                return {**self._inherited(source), **own} if item.args.kwarg else own
        return self._inherited(source) | self._fields(source) if self._is_dataclass(source) else self._inherited(source)

    def _inherited(self, source: ClassSource) -> dict[str, Option]:
        out: dict[str, Option] = {}
        for base in source.node.bases:
            if isinstance(base, ast.Name):
                out |= self.options(base.id)
        return out

    @staticmethod
    def _is_dataclass(source: ClassSource) -> bool:
        return any("dataclass" in ast.unparse(d) for d in source.node.decorator_list)

    @staticmethod
    def _fields(source: ClassSource) -> dict[str, Option]:
        return {
            item.target.id.upper(): Option(item.annotation, item.value is None)
            for item in source.node.body
            if isinstance(item, ast.AnnAssign)
            and isinstance(item.target, ast.Name)
            and "ClassVar" not in ast.unparse(item.annotation)
        }

    def ignored(self, class_name: str) -> set[str]:
        """Keys of upstream's YAML that the class accepts without effect."""
        source = self.classes.get(class_name)
        if source is None:
            return set()
        out: set[str] = set()
        for base in source.node.bases:
            if isinstance(base, ast.Name):
                out |= self.ignored(base.id)
        for item in source.node.body:
            target = item.targets[0] if isinstance(item, ast.Assign) else getattr(item, "target", None)
            if isinstance(target, ast.Name) and target.id == "ignored_keys" and item.value is not None:
                out |= {n.value.upper() for n in ast.walk(item.value) if isinstance(n, ast.Constant)}
        return out

    def typed_dict(self, name: str) -> dict[str, Option] | None:
        """Keys of a ``TypedDict``, or ``None`` if ``name`` is not one."""
        source = self.classes.get(name)
        if source is None:
            return None
        out: dict[str, Option] = {}
        for base in source.node.bases:
            if ast.unparse(base) == "TypedDict":
                break
            inherited = self.typed_dict(ast.unparse(base))
            if inherited is not None:
                out |= inherited
                break
        else:
            return None
        total = not any(
            k.arg == "total" and isinstance(k.value, ast.Constant) and k.value.value is False
            for k in source.node.keywords
        )
        for item in source.node.body:
            if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
                out[item.target.id] = Option(item.annotation, total)
        return out


@functools.lru_cache(maxsize=1)
def source_index() -> SourceIndex:
    """The index of this package's own source."""
    files = sorted(f for room in ROOMS for f in (PACKAGE / room).rglob("*.py"))
    return SourceIndex(files)
