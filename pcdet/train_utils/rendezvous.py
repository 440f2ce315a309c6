"""How the processes of a run find each other, and what is said when one is missing."""

import json
import os
import re
import socket
import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import timedelta

import torch.distributed as dist

DEFAULT_TIMEOUT = 1800.0  # seconds; torch's own for Gloo
GRACE = 2.0  # seconds in which ranks that lost each other exchange what they know


@dataclass(frozen=True)
class Seat:
    """A process's place in the group, as its environment tells."""

    rank: int
    world: int
    host: str
    port: int
    hosted: bool = False  # the launcher serves the store (torchrun); otherwise rank 0 does
    restarts: int = 0  # how often this machine's launcher has restarted its workers; others may count differently

    @classmethod
    def from_environment(cls) -> "Seat":
        """Read RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT. Raises ``ValueError`` for what is no number."""
        numbers = {}
        for name in ("RANK", "WORLD_SIZE", "MASTER_PORT"):
            if not os.environ[name].isdecimal():
                raise ValueError(f"The environment variable {name} is '{os.environ[name]}', not a number")
            numbers[name] = int(os.environ[name])
        rank, world, port = numbers.values()
        if rank >= world:
            raise ValueError(f"RANK is {rank}, but WORLD_SIZE {world}: ranks go from 0 to {world - 1}")
        hosted = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        restarts = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0))
        return cls(rank, world, os.environ["MASTER_ADDR"], port, hosted, restarts)

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass
class Meeting:
    """The group of one attempt: a store that no earlier attempt has written to, and where each rank runs."""

    seat: Seat
    store: dist.Store
    hosts: list[str]  # by rank
    attempt: int = 1  # 2 after the launcher's first restart of the workers, and so on
    began: float = 0.0  # when the first attempt did, in seconds since 1970 by its rank 0's clock; 0 if unknown
    server: dist.Store | None = field(default=None, repr=False)  # kept alive as long as the meeting


def meet(seat: Seat, timeout: float, device: str = "") -> Meeting:
    """Wait until every rank is there; all return the same fresh store.

    ``device`` is a name of this rank's GPU, unique on its machine, or "" for a CPU. Raises ``ValueError`` that names
    the missing ranks after ``timeout`` seconds, for a port in use, and for a GPU that two ranks would share.

    Workers that torchrun restarts find the store of their predecessors, with addresses of dead processes in it; and
    its TORCHELASTIC_RESTART_COUNT differs between nodes if the workers of one node alone have failed. So rank 0 names
    the attempt, and the others believe a name only if rank 0 answers with the nonce that they have just drawn.
    """
    deadline = time.monotonic() + timeout
    server = open_store(seat, deadline, timeout)
    board = dist.PrefixStore("pcdet", server)
    mine = {"nonce": uuid.uuid4().hex, "host": socket.gethostname(), "device": device, "restarts": seat.restarts}
    try:
        call = _call_the_roll if seat.rank == 0 else _answer_the_roll
        name, found = call(board, seat, mine, deadline, timeout)
    except dist.DistError as error:
        raise ValueError(
            f"rank {seat.rank} of {seat.world}: the store at {seat.address} went away while the ranks gathered. Its "
            "process (rank 0, or torchrun on the first node) has ended; its log says why"
        ) from error
    refuse_shared_devices([f"{i['device']} of {i['host']}" if i["device"] else "" for i in found["seats"]])
    store = dist.PrefixStore(f"attempt {name}", server)
    hosts = [i["host"] for i in found["seats"]]
    # A launcher that serves no lasting store gives every attempt a new one, which knows nothing of the first.
    attempt = max(found["attempt"], *(1 + i["restarts"] for i in found["seats"]))
    began = found["began"] if attempt == found["attempt"] else 0.0
    return Meeting(seat, store, hosts, attempt, began, server)


def open_store(seat: Seat, deadline: float, timeout: float) -> dist.Store:
    """Serve the key-value store, or connect to it."""
    serves = seat.rank == 0 and not seat.hosted
    if not serves:
        _wait_for_server(seat, deadline, timeout)
    try:
        return dist.TCPStore(
            seat.host,
            seat.port,
            is_master=serves,
            timeout=timedelta(seconds=timeout),
            wait_for_workers=False,
        )
    except dist.DistNetworkError as error:
        if "EADDRINUSE" in str(error):
            raise ValueError(
                f"Port {seat.port} of this machine ({socket.gethostname()}) is in use, by another training perhaps. "
                "Name another: MASTER_PORT for torchrun's --master_port, --tcp_port under slurm"
            ) from error
        raise ValueError(
            f"rank {seat.rank} of {seat.world} cannot {'serve' if serves else 'use'} the store at {seat.address}: "
            f"{str(error).splitlines()[0]}. MASTER_ADDR must name the machine of rank 0"
        ) from error


def _wait_for_server(seat: Seat, deadline: float, timeout: float) -> None:
    """Connect once. torch's store would wait as well, but prints a stack of C++ frames every time it fails."""
    pause, reason = 0.05, "there was no time"
    while (left := deadline - time.monotonic()) > 0:
        try:
            socket.create_connection((seat.host, seat.port), timeout=left).close()
            return
        except OSError as error:
            reason = str(error)
        time.sleep(min(pause, max(deadline - time.monotonic(), 0)))
        pause = min(2 * pause, 1.0)
    raise ValueError(
        f"rank {seat.rank} of {seat.world} waited {timeout:g} s (--dist_timeout) for rank 0 at {seat.address}: "
        f"{reason}. Missing: rank 0. Is it started? Does MASTER_ADDR name its machine, and may this machine reach that "
        "port (name resolution, firewall, network policy)?"
    )


def _call_the_roll(board: dist.Store, seat: Seat, mine: dict, deadline: float, timeout: float) -> tuple[str, dict]:
    """Rank 0: name the attempt, wait for all, tell all who is there."""
    name = mine["nonce"]
    attempt = board.add("attempts", 1)
    began = float(board.compare_set("began", "", str(time.time())))
    board.set("attempt", name)
    others = range(1, seat.world)
    if not _poll(lambda: board.check([f"{name}/{r}" for r in others]) if others else True, deadline):
        missing = [r for r in others if not board.check([f"{name}/{r}"])]
        board.set(f"{name}/missing", json.dumps(missing))
        time.sleep(GRACE)
        raise _missing(seat, missing, timeout)
    seats = [mine, *(json.loads(board.get(f"{name}/{r}")) for r in others)]
    found = {"seats": seats, "attempt": attempt, "began": began}
    board.set(f"{name}/found", json.dumps(found))
    return name, found


def _answer_the_roll(board: dist.Store, seat: Seat, mine: dict, deadline: float, timeout: float) -> tuple[str, dict]:
    """Other ranks: answer to the newest name, until rank 0 confirms having heard."""
    name, live = "", False

    def confirmed() -> dict | None:
        nonlocal name, live
        newest = board.get("attempt").decode() if board.check(["attempt"]) else ""
        if newest and newest != name:
            name = newest
            # An attempt whose roll is closed is one of our predecessors': rank 0 has yet to begin the next.
            live = not (board.check([f"{name}/found"]) or board.check([f"{name}/missing"]))
            if live:
                board.set(f"{name}/{seat.rank}", json.dumps(mine))
        if live and board.check([f"{name}/missing"]):
            raise _missing(seat, json.loads(board.get(f"{name}/missing")), timeout)
        if not (live and board.check([f"{name}/found"])):
            return None
        found = json.loads(board.get(f"{name}/found"))
        return found if found["seats"][seat.rank]["nonce"] == mine["nonce"] else None

    if found := _poll(confirmed, deadline):
        return name, found
    silent = [r for r in range(1, seat.world) if not board.check([f"{name}/{r}"])] if live else []
    raise _missing(seat, silent or [0], timeout)


def _poll(ready: Callable[[], object], deadline: float) -> object:
    """Ask again and again, ever more slowly, at least once; the answer, or a false one after the deadline."""
    pause = 0.01
    while not (answer := ready()) and time.monotonic() < deadline:
        time.sleep(pause)
        pause = min(1.5 * pause, 0.5)
    return answer


def _missing(seat: Seat, missing: Iterable[int], timeout: float) -> ValueError:
    return ValueError(
        f"rank {seat.rank} of {seat.world} waited {timeout:g} s (--dist_timeout) at {seat.address}. Missing: "
        f"{_ranks(missing)}. Are they started, with WORLD_SIZE {seat.world} and this address? Did they end early (see "
        "their logs)? If they are only slow to start, raise --dist_timeout"
    )


def _ranks(numbers: Iterable[int]) -> str:
    numbers = list(numbers)
    return f"rank{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"


def refuse_shared_devices(devices: list[str]) -> None:
    """NCCL cannot serve two ranks on one GPU. ``devices``: a name for each rank, "" for a CPU."""
    for device in sorted({d for d in devices if d}):
        sharing = [r for r, d in enumerate(devices) if d == device]
        if len(sharing) > 1:
            raise ValueError(
                f"{_ranks(sharing)} would share GPU {device}: more processes than GPUs on that machine. Start as many "
                "as it has GPUs (--nproc_per_node, --ntasks-per-node), or add --device cpu"
            )


_COMMUNICATION = re.compile(r"gloo|nccl|connection (closed|reset) by peer|broken pipe", re.IGNORECASE)


def is_communication(error: Exception) -> bool:
    """Is it the failure of a collective, not of this rank's own work?"""
    return isinstance(error, dist.DistError) or _COMMUNICATION.search(str(error)) is not None


def tell_peers(meeting: Meeting, text: str) -> bool:
    """Leave a note of why this rank ends; returns whether the store took it."""
    try:
        meeting.store.set_timeout(timedelta(seconds=GRACE))
        meeting.store.set(f"end/{meeting.seat.rank}", text)
    except RuntimeError:
        return False
    return True


# What torch puts before an error that is raised while DDP exchanges gradients.
_IN_CALLBACK = re.compile(r"^Got the following error when running the callback: (\w+: )?")


def _reason(error: Exception) -> str:
    """The first line of what torch says, which may go on with stacks of C++ and Python frames."""
    return _IN_CALLBACK.sub("", str(error)).splitlines()[0]


def lost_peers(meeting: Meeting, error: Exception) -> str:
    """After a failed collective: which ranks ended with what message, and of which there is no sign."""
    seat = meeting.seat
    head = f"rank {seat.rank} of {seat.world} lost the others ({_reason(error)})."
    advice = "Start again to go on from the newest checkpoint."
    others = [r for r in range(seat.world) if r != seat.rank]
    store = meeting.store
    try:
        if not tell_peers(meeting, ""):
            return f"{head} The store at {seat.address} is gone: rank 0 or its launcher has ended. {advice}"
        _poll(lambda: store.check([f"end/{r}" for r in others]), time.monotonic() + GRACE)
        silent = [r for r in others if not store.check([f"end/{r}"])]
        notes = {r: store.get(f"end/{r}").decode() for r in others if r not in silent}
    except RuntimeError:
        return f"{head} The store at {seat.address} went away: rank 0 or its launcher has ended. {advice}"
    said = [f"rank {r} ended with: {text}" for r, text in notes.items() if text]
    if silent:
        places = ", ".join(sorted({meeting.hosts[r] for r in silent}))
        said.append(
            f"No sign of {_ranks(silent)} (on {places}): killed (out of memory?), or stuck beyond --dist_timeout"
        )
    return " ".join([head, ". ".join([*said, advice])])
