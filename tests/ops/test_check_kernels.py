"""``benchmarks/check_kernels.py``: it compiles without a GPU, and a spill fails it."""

import os
import subprocess
import sys

import pytest

SPILLING = '''
"""A kernel that holds more numbers than the registers of one warp can."""
import triton
import triton.language as tl
import torch
import check_kernels, kernel_cases_boxes, kernel_cases_points
from pcdet.ops.triton import launch

@triton.jit
def wide_kernel(x, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    values = tl.load(x + at)
    tl.store(x + at, values * tl.sum(values, 0))

kernel_cases_boxes.CASES[:] = []
kernel_cases_points.CASES[:] = [lambda: launch(wide_kernel, (1,), torch.zeros(32768), num_warps=1, BLOCK=SIZE)]
raise SystemExit(check_kernels.main(["--arch", "80", "--jobs", "1", "--only", "wide"]))
'''


def run(root, *command):
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = f"{root / 'benchmarks'}:{root}:{os.environ.get('PYTHONPATH', '')}"
    return subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=280, env=environment)


def test_it_says_that_it_skips_where_triton_is_absent(root, tmp_path):
    code = "import importlib.util as u; u.find_spec = lambda name: None; import check_kernels as c; exit(c.main([]))"
    found = run(root, "-c", code)
    assert found.returncode == 0 and found.stdout.startswith("skipped: Triton is not installed"), found.stderr


@pytest.mark.parametrize("size, code", [(64, 0), (16384, 1)])
def test_a_spill_fails(root, tmp_path, size, code):
    pytest.importorskip("triton", reason="Triton is not installed")
    script = tmp_path / "spilling.py"
    script.write_text(SPILLING.replace("SIZE", str(size)))
    found = run(root, str(script))
    assert found.returncode == code, found.stdout + found.stderr
    assert ("wide_kernel on sm_80 spills" in found.stdout) == bool(code)


CRASHING = """
import os
import check_kernels
plain = check_kernels.compile_for
def compile_for(job):
    if check_kernels._specialisations[job[0]].constants["BLOCK_G"] == 16:
        os._exit(139)
    return plain(job)
compile_for.__module__ = "check_kernels"  # where the processes look for it
check_kernels.compile_for = compile_for
raise SystemExit(check_kernels.main(["--only", "ball_query", "--arch", "80"]))
"""


def test_a_crash_of_the_compiler_fails_and_names_the_kernel_alone(root):
    pytest.importorskip("triton", reason="Triton is not installed")
    found = run(root, "-c", CRASHING)
    assert found.returncode == 1, found.stdout + found.stderr
    assert "ball_query.query_kernel on sm_80 does not compile: the compiler crashed" in found.stdout
    rows = [row for row in found.stdout.splitlines() if row.startswith("| ball_query")]
    crashed = [row for row in rows if row.endswith("fails |")]
    assert crashed and len(crashed) < len(rows) and all("BLOCK_G=16" in row for row in crashed)


SPECIALISED = """
import check_kernels, kernel_cases_boxes, kernel_cases_points
from pcdet.ops.triton import recording
names = set()
for case in (*kernel_cases_points.CASES, *kernel_cases_boxes.CASES):
    with recording() as launches:
        case()
    for launch in launches:
        free = {p.name for p in launch.kernel.params if p.do_not_specialize}
        pairs = zip(launch.kernel.arg_names, launch.arguments)
        names |= {name for name, value in pairs if type(value) is int and name not in free}
print(*sorted(names))
"""


def test_kernels_are_compiled_for_widths_alone_not_for_numbers_of_rows(root):
    """Else a number of points that is a multiple of 16 by chance would compile, in the midst of a training, a kernel
    that nobody has checked. The cases hold multiples of 16 and others for each of these."""
    pytest.importorskip("triton", reason="Triton is not installed")
    found = run(root, "-c", SPECIALISED)
    names = "channels num_samples places_of_each width width_a width_b"
    assert found.stdout.strip() == names, found.stdout + found.stderr


def test_a_kernel_of_the_package_compiles(root):
    """The others are compiled by `make check-kernels`."""
    pytest.importorskip("triton", reason="Triton is not installed")
    found = run(root, str(root / "benchmarks" / "check_kernels.py"), "--only", "ball_query", "--arch", "70")
    assert found.returncode == 0 and "| ball_query: query |" in found.stdout, found.stdout + found.stderr
