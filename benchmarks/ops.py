"""Time of each operator against its plain-torch reference and, where one is installed, against a peer.

    python benchmarks/ops.py [--quick] [--threads N] [--only NAME] [--json OUT]

Inputs are drawn from a fixed seed. Every figure is the median wall time of several calls after one that warms up (and
compiles); "x" columns say how many times longer than ours another way takes. Peers that are not installed are left out.
"""

import argparse
import platform
import statistics
import time
from collections.abc import Callable

import numpy as np
import op_cases_boxes
import op_cases_points
import torch
from op_inputs import Case

from pcdet.utils.files import write_json


def median_ms(call: Callable[[], object], repeats: int, budget: float) -> float:
    """Median of up to ``repeats`` calls, as many as ``budget`` seconds allow but at least one, after one to warm up."""
    call()
    times: list[float] = []
    while len(times) < repeats and sum(times) < budget:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return 1e3 * statistics.median(times)


def measure(case: Case, quick: bool) -> dict:
    repeats, budget = (5, 0.5) if quick else (11, 2.0)
    ours = median_ms(case.ours, repeats, budget)
    others = {name: median_ms(call, repeats, budget) for name, call in case.others.items()}
    return {"operator": case.name, "size": case.size, "ours_ms": ours, "others_ms": others}


def line(result: dict) -> str:
    others = "   ".join(
        f"{name} {ms:9.2f} ms {ms / result['ours_ms']:7.1f}x" for name, ms in result["others_ms"].items()
    )
    return f"{result['operator']:<22} {result['size']:<22} {result['ours_ms']:9.2f} ms   {others}"


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small sizes and few repeats")
    parser.add_argument("--threads", type=int, help="threads to use (default: torch's)")
    parser.add_argument("--only", default="", help="measure only operators whose name holds this")
    parser.add_argument("--json", metavar="OUT", help="write the figures to this file as well")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    machine = {
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "processor": platform.processor() or platform.machine(),
    }
    print(", ".join(f"{key} {value}" for key, value in machine.items()))
    results = []
    for cases in (*op_cases_points.CASES, *op_cases_boxes.CASES):
        for case in cases(arguments.quick):
            if arguments.only in case.name:
                results.append(measure(case, arguments.quick))
                print(line(results[-1]), flush=True)
    if arguments.json:
        write_json(arguments.json, {"machine": machine, "quick": arguments.quick, "results": results})
        print(f"written to {arguments.json}")


if __name__ == "__main__":
    main()
