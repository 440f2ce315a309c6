"""The rooms of docs/ARCHITECTURE.md: who may import whom."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "pcdet"

# A room may import itself and these.
MAY_IMPORT = {
    "utils": set(),
    "config": {"utils"},
    "structures": {"utils"},
    "ops": {"structures", "utils"},
    "layers": {"ops", "structures", "utils"},
    "models": {"layers", "ops", "structures", "utils"},
    "evaluation": {"ops", "structures", "utils"},
    "visual": {"ops", "structures", "utils"},
    "datasets": {"evaluation", "ops", "structures", "utils", "config"},
    "train_utils": {"models", "datasets", "evaluation", "visual", "layers", "ops", "structures", "config", "utils"},
}
# Modules that import an optional or heavy package live in one file each.
ONE_FILE = {"spconv", "spconv_triton", "tensorboardX", "pynvml", "h5py", "safetensors"}


def modules_imported(file: Path, tree: ast.AST) -> list[tuple[int, str]]:
    """Absolute names of everything that a file imports, relative forms resolved."""
    package = ("pcdet", *file.relative_to(PACKAGE).parts[:-1])
    out = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            out += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            prefix = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(p for p in (prefix, node.module) if p)
            out += [(node.lineno, f"{module}.{alias.name}") for alias in node.names]
    return out


def violations(file: Path, source: str) -> list[str]:
    parts = file.relative_to(PACKAGE).parts
    if len(parts) == 1:
        return []
    room, found = parts[0], []
    for line, module in modules_imported(file, ast.parse(source)):
        names = module.split(".")
        if names[0] == "pcdet" and len(names) > 1 and names[1] in MAY_IMPORT:
            if names[1] != room and names[1] not in MAY_IMPORT[room]:
                found.append(f"{'/'.join(parts)}:{line} {room} imports {names[1]}")
        if names[0] == "torch" and room == "config":
            found.append(f"{'/'.join(parts)}:{line} config imports torch")
        if names[0] in ("tools", "tests", "benchmarks"):
            found.append(f"{'/'.join(parts)}:{line} the library imports {names[0]}")
    return found


def test_arrows_go_down():
    files = sorted(PACKAGE.rglob("*.py"))
    assert len(files) > 40
    assert [v for f in files for v in violations(f, f.read_text())] == []


@pytest.mark.parametrize(
    "source",
    [
        "from pcdet.models import build",
        "import pcdet.models.build",
        "from ..models import build",
        "from .. import models",
    ],
)
def test_the_rule_sees_every_form_of_import(source):
    assert violations(PACKAGE / "ops" / "x.py", source) == ["ops/x.py:1 ops imports models"]


def test_optional_packages_stand_in_one_file_each():
    homes: dict[str, set[str]] = {name: set() for name in ONE_FILE}
    for file in PACKAGE.rglob("*.py"):
        for _, module in modules_imported(file, ast.parse(file.read_text())):
            if module.split(".")[0] in homes:
                homes[module.split(".")[0]].add(str(file.relative_to(PACKAGE)))
    assert {k: sorted(v) for k, v in homes.items() if len(v) > 1} == {}


def test_every_room_has_a_rule():
    rooms = {p.name for p in PACKAGE.iterdir() if (p / "__init__.py").exists()}
    assert rooms == set(MAY_IMPORT)


def test_triton_is_imported_by_the_files_of_its_kernels_alone():
    """And those by nobody but ``doors.backend``: a machine without Triton never meets them."""
    for file in PACKAGE.rglob("*.py"):
        names = [module for _, module in modules_imported(file, ast.parse(file.read_text()))]
        if file.name != "triton.py":
            assert not [n for n in names if n.split(".")[0] == "triton" or "triton" in n.split(".")[1:]], file
