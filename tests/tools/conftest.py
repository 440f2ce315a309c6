"""The command lines as functions."""

import importlib.util
import sys

import pytest

from pcdet.utils.logging import get_logger


@pytest.fixture
def tools(root, monkeypatch):
    """``tools("train")`` is the main function of tools/train.py; the logger is put back afterwards."""
    monkeypatch.syspath_prepend(str(root / "tools"))
    logger = get_logger()
    before = logger.level, logger.propagate, list(logger.handlers)

    def load(name):
        spec = importlib.util.spec_from_file_location(f"tool_{name}", root / "tools" / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, spec.name, module)
        spec.loader.exec_module(module)
        return module.main

    yield load
    for handler in logger.handlers:
        handler.close()
    logger.level, logger.propagate, logger.handlers = before
