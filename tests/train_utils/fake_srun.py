"""Stands for Slurm's ``srun`` in tests: as many tasks as asked for, all here, with the variables that they would see.

Its own options go to the file $SRUN_RECORD.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

WITH_VALUE = ("-p", "--partition")


def main() -> int:
    words = sys.argv[1:]
    own = 0
    while words[own].startswith("-"):
        own += 2 if words[own] in WITH_VALUE else 1
    options, command = words[:own], words[own:]
    Path(os.environ["SRUN_RECORD"]).write_text(" ".join(options))
    tasks = int((re.search(r"--ntasks=(\d+)", " ".join(options)) or [0, "1"])[1])
    jobs = []
    for rank in range(tasks):
        seen = {"PROCID": rank, "LOCALID": rank, "NTASKS": tasks, "NODEID": 0, "NODELIST": "localhost"}
        seen |= {"JOB_ID": os.environ.get("SLURM_JOB_ID", os.getpid()), "STEP_ID": 0}
        jobs.append(subprocess.Popen(command, env={**os.environ, **{f"SLURM_{k}": str(v) for k, v in seen.items()}}))
    return max(job.wait() for job in jobs)


if __name__ == "__main__":
    sys.exit(main())
