"""An exception at any place in the project's code at which Python may raise one: what Ctrl-C, a handler that raises,
and a failed allocation do.

A place is an instruction that may raise or heeds signals, and the way back from a call to C; in the project's own code,
and in the Python of the standard library that it calls: in its frames our blocks are entered and left, threads begin,
files are named. Places that are reached in the same way, by the innermost frames, are one place: a loop does not count
for each of its turns.

What Python cannot do is not done: it heeds no signal between a block and its `__exit__`, nor between `__enter__` and
the block.
"""

from __future__ import annotations

import _weakrefset
import concurrent.futures.thread
import contextlib
import dis
import functools
import gc
import selectors
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import afterlog

ROOT = f"{Path(afterlog.__file__).parent}/"
ROOTS: tuple[str, ...] = (ROOT,)
"""Whose code is struck."""
STANDARD = frozenset(
    module.__file__
    for module in (
        _weakrefset,
        contextlib,
        concurrent.futures._base,
        concurrent.futures.thread,
        selectors,
        tempfile,
        threading,
        weakref,
    )
)
"""Of the standard library, what holds locks, names and numbers for us."""
FRAMES = 4
"""Innermost frames that tell one place from another."""
SILENT = """
    NOP POP_TOP LOAD_CONST LOAD_FAST STORE_FAST LOAD_GLOBAL LOAD_DEREF STORE_DEREF LOAD_CLOSURE COPY SWAP PUSH_NULL
    PRECALL KW_NAMES JUMP_FORWARD POP_JUMP_FORWARD_IF_FALSE POP_JUMP_FORWARD_IF_TRUE POP_JUMP_FORWARD_IF_NONE RERAISE
    POP_JUMP_FORWARD_IF_NOT_NONE JUMP_IF_FALSE_OR_POP JUMP_IF_TRUE_OR_POP RETURN_VALUE PUSH_EXC_INFO POP_EXCEPT
    CHECK_EXC_MATCH WITH_EXCEPT_START EXTENDED_ARG CACHE COPY_FREE_VARS MAKE_CELL RETURN_GENERATOR IS_OP
"""
"""Instructions that allocate nothing and heed no signal, or are part of leaving a block."""


@functools.cache
def places_of(code: CodeType) -> frozenset[int]:
    """The offsets of a code object's instructions at which an exception may come up."""
    instructions = list(dis.get_instructions(code))
    found = set()
    for at, each in enumerate(instructions):
        before = [(left.opname, left.argval) for left in instructions[max(at - 4, 0) : at]]
        leaves = before[:3] == [("LOAD_CONST", None)] * 3 and each.opname == "CALL"
        if each.opname not in SILENT.split() and not leaves:
            found.add(each.offset)
    return frozenset(found)


Seen = Callable[[FrameType, str], None]


@contextlib.contextmanager
def watched(seen: Seen) -> Iterator[None]:
    """In the block, and on this thread, `seen` is told each place as it is reached, and may raise there."""

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        code = frame.f_code
        if event == "call":
            if not _is_ours(frame):
                return None
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
        elif event == "opcode" and frame.f_lasti in places_of(code):
            seen(frame, event)
        return trace

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        if event == "c_return" and argument is not sys.setprofile and argument is not sys.settrace and _is_ours(frame):
            seen(frame, event)

    before = sys.gettrace(), sys.getprofile()
    gc.disable()  # its finalizers would be places that come and go
    sys.settrace(trace)
    sys.setprofile(profile)
    try:
        yield
    finally:
        sys.setprofile(before[1])
        sys.settrace(before[0])
        gc.enable()


def _is_ours(frame: FrameType | None) -> bool:
    """Whether a frame is the project's, or one of the standard library's that it called."""
    while frame is not None and frame.f_code.co_filename in STANDARD:
        frame = frame.f_back
    return frame is not None and frame.f_code.co_filename.startswith(ROOTS)


def places(operation: Callable[[], object]) -> list[int]:
    """The places that an operation reaches, by the number of each among all that it reaches one after another."""
    first = dict[tuple[object, ...], int]()
    count = 0

    def seen(frame: FrameType, event: str) -> None:
        nonlocal count
        way: list[object] = [event]
        each: FrameType | None = frame
        while each is not None and len(way) <= 2 * FRAMES:
            way += [each.f_code, each.f_lasti]
            each = each.f_back
        first.setdefault(tuple(way), count)
        count += 1

    with watched(seen):
        operation()
    return list(first.values())


@contextlib.contextmanager
def strike(number: int, error: type[BaseException]) -> Iterator[list[str]]:
    """Raise `error` at the place of that number; where that was, once it has."""
    left, where = number, list[str]()

    def seen(frame: FrameType, event: str) -> None:
        nonlocal left
        if left == 0:
            name = frame.f_code.co_filename.removeprefix(ROOT)
            where.append(f"{name}:{frame.f_lineno} {frame.f_code.co_qualname} {event}")
            left = -1
            raise error
        left -= 1

    with watched(seen):
        yield where
