"""``benchmarks/gpu.py`` runs; on a CPU here, with no more packages than a machine without a package index may have."""

import os
import subprocess
import sys

ABSENT = (
    "matplotlib",
    "skimage",
    "imageio",
    "PIL",
    "h5py",
    "tensorboardX",
    "safetensors",
    "laspy",
    "plyfile",
    "pypcd4",
)
RUN = f"""
import runpy, sys
sys.modules.update(dict.fromkeys({ABSENT}))
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
OPTIONS = ["--device", "cpu", "--repeat", "1", "--no_operators", "--models", "pointnet2_ssg"]


def test_a_page_is_written(root, tmp_path):
    environment = {**os.environ, "PYTHONPATH": f"{root / 'benchmarks'}:{root}"}
    command = [sys.executable, "-c", RUN, str(root / "benchmarks" / "gpu.py"), *OPTIONS, "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, env=environment)
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "gpu-cpu.md").read_text()
    for precision in ("fp32", "bf16"):
        row = next(line for line in text.splitlines() if line.startswith(f"| pointnet2_ssg | {precision} |"))
        assert all(float(value) > 0 for value in row.split("|")[3:9])
    assert "* pointnet2_ssg in fp16" in text and "## Not measured" in text
