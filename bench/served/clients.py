"""Clients at work, and what they and the server use: CPU time of each side, wall time.

Many at a time are a process each, forked, with a connection of its own. So they share no interpreter lock, and what is
measured is the server and not a queue in front of it. It is the same for every contestant but the store in process, of
which clients can only be threads. All connect; then all send a few records; then all begin at once.
"""

from __future__ import annotations

import multiprocessing
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.rivals.usage import Meter, used_s
from bench.served.contestants import Contestant

Figures = dict[str, Any]
Work = Callable[[Contestant, int], Sequence[float]]
"""What a client does, by its number; how long each of its calls took, seconds."""
PATIENCE_S, _END_S = 600.0, 10.0


@dataclass
class Used:
    """Seconds of CPU time by side, and of wall time; and of each call of each client, where it was asked for."""

    client_cpu_s: float = 0.0
    server_cpu_s: float = 0.0
    wall_s: float = 0.0
    calls_s: list[float] = field(default_factory=list)

    def figures(self) -> Figures:
        told = {"client_cpu_s": self.client_cpu_s, "server_cpu_s": self.server_cpu_s, "wall_s": self.wall_s}
        return {name: max(value, 0.0) for name, value in told.items()}


class Alone:
    """One client, in this process, from now until `used`; what is `meter.paused` counts for neither side."""

    def __init__(self, contestant: Contestant) -> None:
        self._processes = contestant.processes()
        self._server_s = used_s(self._processes)
        self.meter = Meter(self._processes)

    def used(self) -> Used:
        """The background's work counts until it is quiet, the time for it does not."""
        _, wall_s = self.meter.read()
        self.meter.quiet()
        both_s, _ = self.meter.read()
        server_s = used_s(self._processes) - self._server_s
        return Used(both_s - server_s, server_s, wall_s)


def at_once(contestant: Contestant, count: int, warm: Work, work: Work) -> Used:
    """So many clients, each of which warms up and then works. Raises what one of them raised."""
    return (_threads if contestant.threads else _processes)(contestant, count, warm, work)


def _threads(contestant: Contestant, count: int, warm: Work, work: Work) -> Used:
    for number in range(count):
        warm(contestant, number)
    calls, failed, begin = list[float](), list[BaseException](), threading.Event()

    def run(number: int) -> None:
        begin.wait()
        try:
            calls.extend(work(contestant, number))
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=[number]) for number in range(count)]
    for thread in threads:
        thread.start()
    alone = Alone(contestant)
    begin.set()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
    used = alone.used()
    used.calls_s = calls
    return used


def _processes(contestant: Contestant, count: int, warm: Work, work: Work) -> Used:
    context = multiprocessing.get_context("fork")
    together = context.Barrier(count + 1, timeout=PATIENCE_S)
    ends = [context.Pipe(duplex=False) for _ in range(count)]
    running = [
        context.Process(target=_client, args=(contestant, number, together, ends[number][1], warm, work), daemon=True)
        for number in range(count)
    ]
    for each in running:
        each.start()
    for _, end in ends:
        end.close()  # when its process has ended, nothing more comes
    try:
        together.wait()  # all are connected
        together.wait()  # and warm
        processes = contestant.processes()
        server_s, quiet = used_s(processes), Meter(processes)
        together.wait()
        told = _answers([answer for answer, _ in ends], PATIENCE_S)
        quiet.quiet()
        used = Used(
            sum(cpu_s for cpu_s, _, _, _ in told),
            used_s(processes) - server_s,
            max(end_s for _, _, end_s, _ in told) - min(begun_s for _, begun_s, _, _ in told),
            [each for _, _, _, calls in told for each in calls],
        )
        together.wait()
    except threading.BrokenBarrierError:
        _answers([answer for answer, _ in ends], _END_S)
        raise RuntimeError("the clients do not come together") from None
    finally:
        together.abort()
        for each in running:
            each.join(_END_S)
            each.kill()
    return used


def _answers(ends: Sequence[Any], patience_s: float) -> list[Any]:
    """What all have found. RuntimeError with why some have failed, or where one says nothing for so long."""
    told, failed = list[Any](), list[str]()
    for end in ends:
        try:
            answer = end.recv() if end.poll(patience_s) else "a client says nothing"
        except EOFError:
            continue  # it has ended because another one failed
        (failed if isinstance(answer, str) else told).append(answer)
    if failed:
        raise RuntimeError("\n".join(failed))
    return told


def _client(contestant: Contestant, number: int, together: Any, answer: Any, warm: Work, work: Work) -> None:
    """In a process of its own; its connection stays until the server's time has been read."""
    try:
        mine = contestant.beside()
        together.wait()
        warm(mine, number)
        together.wait()
        together.wait()
        cpu_s, begun_s = time.process_time(), time.perf_counter()
        calls = list(work(mine, number))
        answer.send((time.process_time() - cpu_s, begun_s, time.perf_counter(), calls))
        together.wait()
    except threading.BrokenBarrierError:
        pass
    except BaseException:
        answer.send(traceback.format_exc())
        together.abort()
