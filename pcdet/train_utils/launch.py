"""Devices, seeds and the start of several processes."""

import ctypes
import datetime
import logging
import os
import re
import socket
import sys
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from pcdet.layers.sync_norm import SyncBatchNorm
from pcdet.train_utils.rendezvous import DEFAULT_TIMEOUT, Meeting, Seat, is_communication, lost_peers, meet, tell_peers
from pcdet.utils import distributed as ranks
from pcdet.utils.logging import get_logger


def choose_device(name: str) -> torch.device:
    """``cpu``, ``cuda`` or ``auto`` -> this process's device. Raises ``ValueError`` for ``cuda`` without one."""
    available = torch.cuda.is_available()
    if name == "cuda" and not available:
        raise ValueError("--device cuda: torch sees no CUDA device here. Use --device cpu, or auto")
    if name == "cpu" or not available:
        return torch.device("cpu")
    index = ranks.local_rank() % torch.cuda.device_count()
    torch.cuda.set_device(index)
    return torch.device("cuda", index)


# glibc's mallopt: blocks from M_MMAP_THRESHOLD bytes on are mapped, and the heap's top is given back beyond
# M_TRIM_THRESHOLD free bytes.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3


def keep_freed_memory() -> bool:
    """Let the C library keep large freed blocks for the next step instead of returning them to the system.

    A training step on a CPU frees and takes the same hundreds of MiB again and again, and the system clears every page
    of them: a fifth of a PointPillars step. It costs about a quarter more peak memory. Returns whether it took effect:
    only glibc (Linux) has the switch.
    """
    if not sys.platform.startswith("linux"):
        return False
    library = ctypes.CDLL(None)
    if not hasattr(library, "mallopt"):
        return False
    return bool(library.mallopt(M_MMAP_THRESHOLD, 1 << 30) and library.mallopt(M_TRIM_THRESHOLD, (1 << 31) - 1))


def start_processes(launcher: str, tcp_port: int | None, device: str, timeout: float = DEFAULT_TIMEOUT) -> None:
    """Join the process group that ``launcher`` (none, pytorch, slurm) has started.

    ``pytorch`` is torchrun or torch.distributed.launch, which choose the port themselves; ``tcp_port`` is for slurm
    (default: one that follows from the job's number). GPUs talk through NCCL, CPUs through Gloo. ``timeout``, in
    seconds, is how long to wait for the others, here and in every collective. Raises ``ValueError`` that names the
    ranks which did not come, and for more processes than GPUs on a machine.
    """
    if launcher == "none":
        refuse_forgotten_launcher()
        return
    if timeout <= 0:
        raise ValueError(f"--dist_timeout is {timeout:g}; it is a number of seconds above 0")
    if launcher == "slurm":
        os.environ.update(slurm_environment(tcp_port))
    missing = [k for k in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT") if k not in os.environ]
    if missing:
        raise ValueError(
            f"--launcher pytorch: {', '.join(missing)} is not set. Start with "
            "torchrun --nproc_per_node N tools/train.py --launcher pytorch ..., or tools/scripts/dist_train.sh N ..."
        )
    chosen = choose_device(device)
    meeting = meet(Seat.from_environment(), timeout, device_name(chosen))
    cuda = {"device_id": chosen} if chosen.type == "cuda" else {}
    try:
        dist.init_process_group(
            "nccl" if cuda else "gloo",
            store=meeting.store,
            rank=meeting.seat.rank,
            world_size=meeting.seat.world,
            timeout=datetime.timedelta(seconds=timeout),
            **cuda,
        )
    except RuntimeError as error:
        raise ValueError(
            f"All {meeting.seat.world} ranks are there, but rank {meeting.seat.rank} cannot connect to them: "
            f"{str(error).splitlines()[0]}. If machines have several networks, name the one between them: "
            "GLOO_SOCKET_IFNAME (CPU) or NCCL_SOCKET_IFNAME (GPU), such as eth0"
        ) from error
    _meetings.append(meeting)


_meetings: list[Meeting] = []  # the group that this process has joined, as torch too holds one a process


def is_restart() -> bool:
    """Has the launcher restarted the workers of this run (torchrun --max-restarts)? Equal on all ranks."""
    return bool(_meetings) and _meetings[-1].attempt > 1


def restarted_since() -> float:
    """When the first attempt of this run began, in seconds since 1970; 0 in the first attempt itself."""
    return _meetings[-1].began if is_restart() else 0.0


def refuse_forgotten_launcher() -> None:
    """Processes that torchrun started, but that do not know of each other, would all write to the same files."""
    world = os.environ.get("WORLD_SIZE", "1")
    if "TORCHELASTIC_RUN_ID" in os.environ and world != "1":
        raise ValueError(f"torchrun has started {world} processes: add --launcher pytorch, so that they train together")


def has_lost_the_others(error: Exception) -> bool:
    """Is it a collective that failed because another rank has ended, and no error of this rank's own?"""
    return ranks.is_distributed() and isinstance(error, RuntimeError) and is_communication(error)


def explain_failure(error: Exception) -> str | None:
    """Tell the other ranks that this one ends; the message for the log if it ends because it lost the others.

    ``None`` in a single process, and for an error of this rank's own.
    """
    if not _meetings or not ranks.is_distributed():
        return None
    if has_lost_the_others(error):
        return lost_peers(_meetings[-1], error)
    tell_peers(_meetings[-1], str(error) or type(error).__name__)
    return None


def agree_on_checkpoint(found: tuple[Path, dict[str, Any]] | None, folder: Path) -> None:
    """Raise ``ValueError``, on every rank, unless all ranks have found the same checkpoint, or all none."""
    mine = "none" if found is None else f"{found[0].name} of step {found[1].get('it', 0)}"
    views = ranks.gather_objects((mine, socket.gethostname()))
    if len({view for view, _ in views}) > 1:
        seen = "; ".join(f"rank {rank} on {host}: {view}" for rank, (view, host) in enumerate(views))
        raise ValueError(
            f"The ranks see different checkpoints in {folder}: {seen}. Name a folder that all machines share with "
            "--output_dir, or copy the files to the others"
        )


def device_name(device: torch.device) -> str:
    """A name of the GPU that is unique on its machine, whatever CUDA_VISIBLE_DEVICES makes of its number."""
    if device.type != "cuda":
        return ""
    properties = torch.cuda.get_device_properties(device)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return str(getattr(properties, "uuid", f"{device.index} of CUDA_VISIBLE_DEVICES={visible}"))


def slurm_environment(tcp_port: int | None) -> dict[str, str]:
    """What torch wants to know, from what slurm says. Raises ``ValueError`` outside of a job step."""
    try:
        task, tasks, nodes = (os.environ[f"SLURM_{k}"] for k in ("PROCID", "NTASKS", "NODELIST"))
    except KeyError as error:
        raise ValueError(f"--launcher slurm: {error.args[0]} is not set. Start with srun") from error
    # All tasks must agree on the port without talking: it follows from what they share. Steps of one job differ, and
    # it stays below the ports (from 32768 on, on Linux) that the system gives to anyone.
    job, step = (int(os.environ.get(f"SLURM_{k}_ID", 0)) for k in ("JOB", "STEP"))
    port = tcp_port or 20000 + (job + step) % 10000
    return {
        "RANK": task,
        "WORLD_SIZE": tasks,
        "LOCAL_RANK": os.environ.get("SLURM_LOCALID", "0"),
        "MASTER_ADDR": first_host(os.environ.get("SLURM_STEP_NODELIST", nodes)),
        "MASTER_PORT": str(port),
    }


def first_host(nodes: str) -> str:
    """The first of slurm's list of hosts: ``gpu[03-05,7],big1`` -> ``gpu03``. Containers may lack scontrol."""
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])*", nodes.strip())[0]
    return re.sub(r"\[([^\],-]*)[^\]]*\]", r"\1", first)


def stop_processes() -> None:
    """Leave the process group, if there is one, all ranks together."""
    if ranks.is_distributed():
        dist.barrier()
        dist.destroy_process_group()
        _meetings.clear()


def end_process(status: int) -> NoReturn:
    """End one of several processes without tearing the interpreter down.

    Gloo's threads in torch 2.13 abort now and then (about one in ten runs) while the interpreter goes, after all work
    is done and written; the launcher would report a finished training as failed.
    """
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def synchronize_norms(model: nn.Module) -> nn.Module:
    """Every batch norm of ``model`` with the statistics of all ranks. A single process changes nothing and says so."""
    if ranks.world_size() == 1:
        get_logger().info("--sync_bn changes nothing with one process")
        return model
    # A group of their own: their collectives then cannot be taken for those with which gradients are exchanged.
    return SyncBatchNorm.convert_sync_batchnorm(model, dist.new_group())


def distribute(model: nn.Module, device: torch.device) -> nn.Module:
    """The model itself in a single process, else a wrapper that averages gradients over the ranks."""
    if not ranks.is_distributed():
        return model
    return DistributedDataParallel(model, device_ids=[device.index] if device.type == "cuda" else None)
