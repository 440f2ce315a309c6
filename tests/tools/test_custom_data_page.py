"""docs/CUSTOM_DATA.md as it is read: its commands are run in order, and what it shows of their output must come out."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

PAGE = Path("docs") / "CUSTOM_DATA.md"
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Step(NamedTuple):
    """The commands of one block, and the lines that are shown of their output; ``...`` stands for anything."""

    commands: list[str]
    shown: list[str]


def steps_of(text: str) -> list[Step]:
    """Blocks marked ``bash``, each with the block marked ``text`` that follows it."""
    steps: list[Step] = []
    for kind, content in FENCE.findall(text):
        if kind == "bash":
            steps.append(Step(content.splitlines(), []))
        elif kind == "text":
            steps[-1].shown.extend(content.splitlines())
    return steps


def is_shown(line: str, output: str) -> bool:
    """Does a line of the output begin and end as ``line``?"""
    pattern = ".*".join(re.escape(part) for part in line.split("..."))
    return re.search(f"^{pattern}$", output, re.MULTILINE) is not None


@pytest.fixture
def copy(root, tmp_path):
    """The repository's code and documents, apart from its data and output."""
    for name in ("cfgs", "docs", "pcdet", "tools"):
        shutil.copytree(root / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


@pytest.mark.timeout(900)  # nine commands, each a start of Python and torch
def test_the_commands_of_the_page_do_what_it_shows(root, copy):
    pytest.importorskip("pypcd4")
    steps = steps_of((root / PAGE).read_text(encoding="utf-8"))
    assert sum(len(step.commands) for step in steps) == 9 and all(step.shown for step in steps)
    environment = os.environ | {"PYTHONPATH": str(copy), "OMP_NUM_THREADS": "1"}
    for step in steps:
        output = ""
        for command in step.commands:
            program, *words = command.split()
            assert program == "python"
            done = subprocess.run([sys.executable, *words], cwd=copy, env=environment, capture_output=True, text=True)
            expected = int(done.stdout.splitlines()[-1].startswith("2 BREAKS")) if "check_data" in command else 0
            assert done.returncode == expected, f"{command}\n{done.stdout}{done.stderr}"
            output += done.stdout + done.stderr
        missing = [line for line in step.shown if not is_shown(line, output)]
        assert not missing, f"{step.commands}: not in the output: {missing}\n{output}"
    for picture in (copy / "data" / "pictures").glob("*.png"):
        assert picture.read_bytes().startswith(b"\x89PNG")
    assert len(list((copy / "data" / "pictures").iterdir())) == 2


def test_the_yaml_that_the_page_shows_is_the_one_that_it_uses(root):
    blocks = [content for kind, content in FENCE.findall((root / PAGE).read_text(encoding="utf-8")) if kind == "yaml"]
    assert yaml.safe_load(blocks[0]) == yaml.safe_load((root / "docs/examples/foreign_data.yaml").read_text())


def test_a_line_with_an_ellipsis_is_found_in_whole_lines_only():
    assert is_shown("a ... c", "x\na b c\n") and not is_shown("a ... c", "a b c d\n") and not is_shown("a", "ab\n")
