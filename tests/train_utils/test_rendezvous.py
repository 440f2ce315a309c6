"""Processes find each other, or say who is missing. The ranks are threads here."""

import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch.distributed as dist
from processes import free_port

from pcdet.train_utils import rendezvous
from pcdet.train_utils.rendezvous import Meeting, Seat, is_communication, lost_peers, meet, refuse_shared_devices


@pytest.fixture(autouse=True)
def short_grace(monkeypatch):
    monkeypatch.setattr(rendezvous, "GRACE", 0.3)


def gather(present, world, port, *, hosted=False, timeout=1.0, late=(), restarts=0):
    """What each rank got: a meeting, or the error. The ranks in ``late`` come 0.3 s after the others."""

    def one(rank):
        if rank in late:
            time.sleep(0.3)
        try:
            return meet(Seat(rank, world, "127.0.0.1", port, hosted, restarts), timeout)
        except ValueError as error:
            return str(error)

    with ThreadPoolExecutor(len(present)) as pool:
        return dict(zip(present, pool.map(one, present), strict=True))


@pytest.fixture
def torchrun_store():
    """The store that a launcher serves over all restarts."""
    return dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=5))


@pytest.mark.parametrize("late", [(), (0,), (2,)])
def test_all_ranks_share_one_store(late):
    met = gather([0, 1, 2], 3, free_port(), late=late, timeout=10)
    met[1].store.set("x", "1")
    assert met[0].store.get("x") == met[2].store.get("x") == b"1"
    assert met[0].hosts == [socket.gethostname()] * 3
    assert {m.attempt for m in met.values()} == {1}


def test_a_single_rank_meets_itself():
    assert gather([0], 1, free_port())[0].attempt == 1


def test_missing_ranks_are_named_by_all():
    met = gather([0, 2], 5, free_port())
    for rank, text in met.items():
        assert f"rank {rank} of 5 waited 1 s (--dist_timeout)" in text
        assert "Missing: ranks 1, 3, 4." in text and "raise --dist_timeout" in text


def test_rank_0_is_missing_when_nothing_answers_at_its_address():
    text = gather([1], 2, free_port(), timeout=0.3)[1]
    assert "Missing: rank 0" in text and "refused" in text and "firewall" in text


def test_rank_0_is_missing_beside_the_launchers_store(torchrun_store):
    text = gather([1, 2], 3, torchrun_store.port, hosted=True, timeout=0.3)[1]
    assert "Missing: rank 0." in text


def test_an_unknown_host_is_named():
    with pytest.raises(ValueError, match=r"no-such-host\.invalid:1: .*Missing: rank 0"):
        meet(Seat(1, 2, "no-such-host.invalid", 1), 0.2)


def test_e15_a_port_in_use_is_named():
    with socket.socket() as other:
        other.bind(("", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(ValueError, match=rf"Port {port} of this machine .* is in use.*--tcp_port"):
            meet(Seat(0, 2, "127.0.0.1", port), 1)


def test_restarted_workers_get_a_fresh_store(torchrun_store):
    """The ranks of the second attempt come before their rank 0, which the first attempt's is not mistaken for."""
    first = gather([0, 1, 2], 3, torchrun_store.port, hosted=True, timeout=10)
    first[0].store.set("address", "of a dead process")
    second = gather([0, 1, 2], 3, torchrun_store.port, hosted=True, late=[0], timeout=10)
    assert [second[r].attempt for r in range(3)] == [2, 2, 2]
    assert {m.began for m in (*first.values(), *second.values())} == {first[0].began}
    assert not second[1].store.check(["address"])
    second[1].store.set("x", "2")
    assert second[0].store.get("x") == second[2].store.get("x") == b"2"


def test_a_restart_is_known_without_a_store_that_outlives_the_workers():
    met = gather([0, 1], 2, free_port(), timeout=10, restarts=1)
    assert [(met[r].attempt, met[r].began) for r in range(2)] == [(2, 0.0), (2, 0.0)]


def test_an_attempt_after_one_that_failed(torchrun_store):
    assert "Missing: rank 2" in gather([0, 1], 3, torchrun_store.port, hosted=True, timeout=0.3)[0]
    met = gather([0, 1, 2], 3, torchrun_store.port, hosted=True, late=[0], timeout=10)
    assert [met[r].attempt for r in range(3)] == [2, 2, 2]


def test_a_rank_that_is_restarted_alone_is_waited_for(torchrun_store):
    """Its predecessor has answered already; rank 0 still waits for another."""
    board = dist.PrefixStore("pcdet", torchrun_store)
    results = {}

    def first():
        results.update(gather([0], 3, torchrun_store.port, hosted=True, timeout=10))

    waiting = threading.Thread(target=first)
    waiting.start()
    while not board.check(["attempt"]):
        time.sleep(0.01)
    board.set(f"{board.get('attempt').decode()}/1", '{"nonce": "of the predecessor", "host": "a", "device": ""}')
    results.update(gather([1, 2], 3, torchrun_store.port, hosted=True, late=[2], timeout=10))
    waiting.join()
    assert [results[r].attempt for r in range(3)] == [1, 1, 1]


def test_two_ranks_on_one_gpu_are_refused():
    refuse_shared_devices(["GPU-1 of a", "GPU-1 of b", "GPU-2 of a"])
    refuse_shared_devices(["", "", ""])
    with pytest.raises(ValueError, match="ranks 0, 2 would share GPU GPU-1 of a: more processes than GPUs"):
        refuse_shared_devices(["GPU-1 of a", "GPU-2 of a", "GPU-1 of a"])


@pytest.mark.parametrize(
    "name, value, message",
    [("RANK", "one", "RANK is 'one', not a number"), ("RANK", "2", "RANK is 2, but WORLD_SIZE 2"),
     ("MASTER_PORT", "", "MASTER_PORT is '', not a number")],
)  # fmt: skip
def test_a_wrong_environment_is_named(monkeypatch, name, value, message):
    for key, default in {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(key, default)
    monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=message):
        Seat.from_environment()


def meetings(server):
    return [Meeting(Seat(r, 3, "host", 1), server, ["a", "b", "c"]) for r in range(3)]


def test_who_was_lost_and_who_said_why():
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=5))
    zero, _, two = meetings(server)
    rendezvous.tell_peers(two, "No labels in 000123.txt")
    text = lost_peers(zero, RuntimeError("gloo: Connection closed by peer\nstack"))
    assert text.startswith("rank 0 of 3 lost the others (gloo: Connection closed by peer). ")
    assert "rank 2 ended with: No labels in 000123.txt." in text
    assert "No sign of rank 1 (on b): killed" in text and "newest checkpoint" in text
    head = "Got the following error when running the callback: "
    wrapped = RuntimeError(head + "RuntimeError: gloo: closed\n\nAt:\n  a.py")
    assert lost_peers(zero, wrapped).startswith("rank 0 of 3 lost the others (gloo: closed). ")


def test_communication_is_told_from_a_ranks_own_errors():
    assert is_communication(RuntimeError("[../third_party/gloo/gloo/transport/tcp/pair.cc] Timed out waiting 1000ms"))
    assert is_communication(RuntimeError("NCCL error in: ..."))
    assert not is_communication(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
