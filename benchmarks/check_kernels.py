"""Compile every Triton kernel that the models launch, for each GPU architecture, on a machine without a GPU.

    python benchmarks/check_kernels.py [--arch 70 --arch 80 ...] [--only NAME] [--jobs N] [--json OUT] [--docs FILE]

The operators are called at the models' sizes on the CPU with their launches listed instead of run
(``pcdet.ops.triton.recording``), so the types, block sizes and warps are those that the models use. Each distinct
specialisation is compiled to a cubin; ptxas tells its registers, shared memory and spills. A spill, a kernel that does
not compile or one that no case launches ends the run with exit code 1. Nothing is timed: that needs a GPU.
"""

import argparse
import contextlib
import importlib
import io
import multiprocessing
import os
import re
import sys
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, NamedTuple

os.environ.pop("TRITON_INTERPRET", None)  # kernels are to be compiled here

import torch

import pcdet.ops
from pcdet.utils.files import atomic_open, write_json

ARCHITECTURES = (70, 80, 90, 100)
MARKS = "<!-- check_kernels.py --docs writes this table -->", "<!-- end of the table -->"
TYPES = {
    torch.float64: "fp64",
    torch.float32: "fp32",
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.int16: "i16",
    torch.int8: "i8",
    torch.uint8: "u8",
    torch.bool: "i1",
}


class Specialisation(NamedTuple):
    """One kernel with the types of its arguments and the values that are compiled into it."""

    kernel: Any  # triton's JITFunction
    signature: dict[str, str]
    constants: dict[str, Any]
    aligned: tuple[int, ...]  # places of the arguments that are divisible by 16
    num_warps: int

    @property
    def operator(self) -> str:
        return self.kernel.fn.__module__.removesuffix(".triton").split(".")[-1]

    @property
    def name(self) -> str:
        return f"{self.operator}: {self.kernel.fn.__name__.removesuffix('_kernel')}"

    @property
    def label(self) -> str:
        """Types of the pointers, then what is compiled in, without the ones that Triton finds by itself."""
        types = dict.fromkeys(kind[1:] for kind in self.signature.values() if kind.startswith("*"))
        given = [f"{name}={value}" for name, value in self.constants.items() if name.isupper()]
        return " ".join(["/".join(types), *given])

    def key(self) -> tuple:
        return self.kernel.fn.__qualname__, str(self.signature), str(self.constants), self.aligned, self.num_warps


def specialise(launch: Any) -> Specialisation:
    """What Triton would compile for a launch: 1 and None become constants, multiples of 16 are marked.

    Not so for arguments that the kernel lists under ``do_not_specialize``.
    """
    names = launch.kernel.arg_names
    plain = {parameter.name for parameter in launch.kernel.params if parameter.do_not_specialize}
    signature, constants, aligned = {}, dict(launch.constants), []
    for place, (name, value) in enumerate(zip(names, launch.arguments, strict=False)):
        if isinstance(value, torch.Tensor):
            signature[name] = "*" + TYPES[value.dtype]
            if value.data_ptr() % 16 == 0:
                aligned.append(place)
        elif value is None or (type(value) is int and value == 1 and name not in plain):
            constants[name] = value
        elif isinstance(value, bool):
            signature[name] = "u1"
        elif isinstance(value, float):
            signature[name] = "fp32"
        else:
            signature[name] = "i32" if -(2**31) <= value < 2**31 else "i64"
            if value % 16 == 0 and name not in plain:
                aligned.append(place)
    signature |= dict.fromkeys(constants, "constexpr")
    missing = [name for name in names if name not in signature]
    if missing:
        raise ValueError(f"{launch.kernel.fn.__qualname__} was launched without {missing}")
    ordered = {name: signature[name] for name in names}
    return Specialisation(launch.kernel, ordered, constants, tuple(aligned), launch.num_warps)


class Report(NamedTuple):
    """What ptxas said of one kernel for one architecture; bytes, except for the registers of a thread."""

    registers: int
    shared: int
    spilled: int
    error: str = ""


def compile_for(job: tuple[int, int]) -> Report:
    """Compile specialisation ``job[0]`` of the list for architecture ``job[1]``."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    spec, arch = _specialisations[job[0]], job[1]
    attributes = {(place,): [["tt.divisibility", 16]] for place in spec.aligned}
    source = ASTSource(spec.kernel, spec.signature, spec.constants, attributes)
    options = {"num_warps": spec.num_warps, "enable_fp_fusion": False}
    triton.knobs.compilation.always_compile = True  # ptxas must run, or it tells nothing
    triton.knobs.nvidia.dump_ptxas_log = True
    log = io.StringIO()
    try:
        with contextlib.redirect_stdout(log):
            compiled = triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options)
    except (triton.CompilationError, RuntimeError) as error:
        return Report(0, 0, 0, f"{error}".strip() or repr(error))
    return read_log(log.getvalue(), compiled.metadata.shared)


def read_log(log: str, shared: int) -> Report:
    """Registers and spills from ``ptxas -v``; shared memory is what Triton asks for at the launch."""
    registers = re.findall(r"Used (\d+) registers", log)
    spills = re.findall(r"(\d+) bytes spill stores, (\d+) bytes spill loads", log)
    if not registers or not spills:
        raise ValueError(f"ptxas told no registers or spills:\n{log}")
    return Report(max(map(int, registers)), shared, sum(int(n) for pair in spills for n in pair))


_specialisations: list[Specialisation] = []  # global, so that forked workers have it


def collect(only: str) -> None:
    """Fill the list from the cases; ``only`` is part of a kernel's or an operator's name."""
    import kernel_cases_boxes
    import kernel_cases_points

    from pcdet.ops.triton import recording

    seen = set()
    for case in (*kernel_cases_points.CASES, *kernel_cases_boxes.CASES):
        with recording() as launches:
            case()
        for spec in map(specialise, launches):
            name = f"{spec.operator}.{spec.kernel.fn.__name__}"
            if spec.key() not in seen and only in name:
                seen.add(spec.key())
                _specialisations.append(spec)
    _specialisations.sort(key=lambda spec: (spec.operator, spec.kernel.fn.__name__, spec.label))


def compile_all(jobs: list[tuple[int, int]], workers: int) -> dict[tuple[int, int], Report]:
    """Each job's report. A compiler that crashes ends the pool: what was not done is then compiled one by one."""
    with ProcessPoolExecutor(workers, multiprocessing.get_context("fork")) as pool:
        coming = {job: pool.submit(compile_for, job) for job in jobs}
    reports = {}
    for job, future in coming.items():
        lost = isinstance(future.exception(), BrokenProcessPool)
        reports[job] = compile_alone(job) if lost else future.result()
    return reports


def compile_alone(job: tuple[int, int]) -> Report:
    """As :func:`compile_for`, in a process that may crash."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as pool:
        try:
            return pool.submit(compile_for, job).result()
        except BrokenProcessPool:
            return Report(0, 0, 0, "the compiler crashed")


def never_launched() -> list[str]:
    """Kernels of the package (named ``..._kernel``) that no case launches."""
    launched = {(spec.kernel.fn.__module__, spec.kernel.fn.__name__) for spec in _specialisations}
    missing = []
    for path in sorted(Path(pcdet.ops.__path__[0]).glob("*/triton.py")):
        module = importlib.import_module(f"pcdet.ops.{path.parent.name}.triton")
        own = [n for n, value in vars(module).items() if n.endswith("_kernel") and value.__module__ == module.__name__]
        missing += [f"{path.parent.name}.{name}" for name in own if (module.__name__, name) not in launched]
    return missing


def table(reports: dict[tuple[int, int], Report], architectures: Iterable[int]) -> str:
    heads = [f"sm_{arch}" for arch in architectures]
    rows = [["kernel", "types and constants", "warps", *heads], ["---"] * (3 + len(heads))]
    for number, spec in enumerate(_specialisations):
        cells = [spec.name, spec.label, str(spec.num_warps)]
        for arch in architectures:
            found = reports[number, arch]
            spill = f", spills {found.spilled}" if found.spilled else ""
            cells.append("fails" if found.error else f"{found.registers} / {found.shared}{spill}")
        rows.append(cells)
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def summary(reports: dict[tuple[int, int], Report], architectures: Iterable[int]) -> str:
    """One line a kernel: the most registers and shared memory that any of its specialisations takes."""
    rows = [["kernel", "specialisations", *(f"sm_{arch}" for arch in architectures)]]
    rows.append(["---"] * len(rows[0]))
    for name in dict.fromkeys(spec.name for spec in _specialisations):
        numbers = [number for number, spec in enumerate(_specialisations) if spec.name == name]
        cells = [name, str(len(numbers))]
        for arch in architectures:
            found = [reports[number, arch] for number in numbers]
            cells.append(f"{max(r.registers for r in found)} / {max(r.shared for r in found)}")
        rows.append(cells)
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def write_docs(path: Path, text: str) -> None:
    """Put ``text`` between the two comments that mark its place in a page."""
    before, rest = path.read_text().split(MARKS[0], 1)
    with atomic_open(path, "w") as file:
        file.write(f"{before}{MARKS[0]}\n{text}\n{MARKS[1]}{rest.split(MARKS[1], 1)[1]}")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", type=int, action="append", help="compute capability, such as 80; may be repeated")
    parser.add_argument("--only", default="", help="part of the name of a kernel or an operator")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="compilers that run at once")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--docs", type=Path, help="write a line for each kernel to the marked place of this page")
    options = parser.parse_args(argv)
    if importlib.util.find_spec("triton") is None:
        print("skipped: Triton is not installed, so no kernel was compiled (pip install triton)")
        return 0
    architectures = options.arch or ARCHITECTURES
    collect(options.only)
    jobs = [(number, arch) for number in range(len(_specialisations)) for arch in architectures]
    reports = compile_all(jobs, options.jobs)
    print(table(reports, architectures))
    print("\nEach cell: registers of a thread / bytes of shared memory of a program.")
    faults = [f"{name} is launched by no case of this check" for name in never_launched()] if not options.only else []
    for (number, arch), found in reports.items():
        name = f"{_specialisations[number].operator}.{_specialisations[number].kernel.fn.__name__} on sm_{arch}"
        if found.error:
            faults.append(f"{name} does not compile: {found.error}")
        elif found.spilled:
            faults.append(f"{name} spills {found.spilled} bytes ({_specialisations[number].label})")
    print(*faults, sep="\n")
    if options.docs and not faults:
        write_docs(options.docs, summary(reports, architectures))
    if options.json:
        figures = [
            {
                "kernel": f"{spec.operator}.{spec.kernel.fn.__name__}",
                "specialisation": spec.label,
                "warps": spec.num_warps,
                **{f"sm_{arch}": reports[number, arch]._asdict() for arch in architectures},
            }
            for number, spec in enumerate(_specialisations)
        ]
        write_json(options.json, figures)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
