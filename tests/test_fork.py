"""A forked child has its parent's objects and none of its rights: it gets StoreForked, and the parent goes on."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

import afterlog


def in_child(call: Callable[[], object]) -> str:
    """The name of the exception that `call` raises in a forked child, empty for none."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            call()
            answer = b""
        except BaseException as error:
            answer = type(error).__name__.encode()
        os.write(write, answer)
        os._exit(0)
    os.close(write)
    with open(read, "rb") as answers:
        answer = answers.read()
    assert (child, 0) == os.waitpid(child, 0)
    return answer.decode()


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_child_is_refused_and_parent_goes_on(tmp_path: Path) -> None:
    with afterlog.open(tmp_path) as store:
        partition = store.create_topic("mail").partition(0)
        store.send("mail", b"before")
        with store.consumer("mail", group="g") as consumer, store.subscribe("mail", "s") as subscription:
            received = subscription.receive()
            batch = afterlog.encode_batch([afterlog.Record(value=b"", timestamp=0)])
            for call in (
                lambda: store.send("mail", b"child"),
                lambda: store.send_many("mail", [b"child"]),
                lambda: store.create_topic("child"),
                lambda: store.consumer("mail", group="child"),
                lambda: partition.append(batch),
                lambda: partition.fetch(0),
                consumer.poll,
                lambda: store.subscribe("mail", "child"),
                subscription.receive,
                lambda: subscription.ack_many(received),
                lambda: subscription.nack(received),
                subscription.stats,
                partition.high_watermark,
                store.sync,
                store.enforce_retention,
            ):
                assert "StoreForked" == in_child(call)
            for close in (subscription.close, store.close):
                assert "" == in_child(close), "a child may clean up behind itself"
            assert 1 == subscription.ack_many(received).acked
            assert 1 == store.send("mail", b"after").offset
            polled = [*consumer.poll(), *consumer.poll()]  # one may end where the subscription's reading did
            assert [b"before", b"after"] == [message.value for message in polled]
    with afterlog.open(tmp_path) as store, store.consumer("mail", group="g") as consumer:
        assert {0: 2} == consumer.positions()
        store.check()


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_child_does_not_keep_the_lock_of_an_owner_that_was_killed(tmp_path: Path) -> None:
    """The child inherits the descriptor, and a lock lasts as long as any of them is open."""
    opened_read, opened_write = os.pipe()
    read, write = os.pipe()
    owner = os.fork()
    if owner == 0:
        try:
            afterlog.open(tmp_path)
            if os.fork() == 0:
                os.write(opened_write, b"1")
                os.close(write)
                os.read(read, 1)  # lives until the test is done with it
                os._exit(0)
            os.close(opened_write)
            os.read(read, 1)
        finally:
            os._exit(0)
    os.close(opened_write)
    assert b"1" == os.read(opened_read, 1)
    with pytest.raises(afterlog.StoreLocked):
        afterlog.open(tmp_path)
    os.kill(owner, signal.SIGKILL)
    os.waitpid(owner, 0)
    try:
        afterlog.open(tmp_path).close()
    finally:
        for descriptor in (opened_read, read, write):
            os.close(descriptor)
