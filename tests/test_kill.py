"""A real process on a real folder, killed with SIGKILL again and again: what it said on the pipe is true afterwards."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import afterlog
from tests.crashes import contents

ROOT = Path(__file__).parent.parent
CYCLES = 20
CONFIG = afterlog.Config(segment_bytes=8_192, batch_bytes_max=4_096, min_index_count_per_bucket=16)

CHILD = """
import itertools, random, sys
import afterlog
from tests.test_kill import CONFIG

chance = random.Random(int(sys.argv[2]))
with afterlog.open(sys.argv[1], config=CONFIG) as store:
    store.create_topic("mail")
    with store.consumer("mail", group="g", auto_commit=False) as consumer:
        for number in itertools.count():
            values = [b"%s-%d-%d" % (sys.argv[2].encode(), number, row) for row in range(chance.choice([1, 1, 5]))]
            delays = [chance.choice([0, 0.001, 0.05, 60]) for _ in values]
            print("try", *(value.decode() for value in values), flush=True)
            offsets = store.send_many("mail", values, delay=delays)
            print("ack", *offsets.tolist(), flush=True)
            for message in consumer.poll():
                print("got", message.delivery_offset, message.offset, message.value.decode(), flush=True)
            if number % 3 == 0:
                consumer.commit()
                print("commit", *consumer.positions().values(), flush=True)
"""


class Oracle:
    """What the children said, in the order in which they said it."""

    def __init__(self) -> None:
        self.known: dict[int, str] = {}
        self.trying: list[str] = []
        self.delivered: dict[int, tuple[int, str]] = {}
        self.committed = 0

    def hear(self, line: str) -> None:
        word, *rest = line.split()
        match word:
            case "try":
                self.trying = rest
            case "ack":
                self.known |= dict(zip(map(int, rest), self.trying, strict=True))
                self.trying = []
            case "got":
                rank, offset, value = int(rest[0]), int(rest[1]), rest[2]
                assert (offset, value) == self.delivered.setdefault(rank, (offset, value))
                assert value == self.known.get(offset, value)
            case "commit":
                self.committed = int(rest[0])

    def verify(self, folder: Path) -> None:
        with afterlog.open(folder, config=CONFIG) as store:
            partition = store.topic("mail").partition(0)
            found = [record[0].decode() if record else None for record in contents(partition)]
            expected = [self.known[offset] for offset in range(len(self.known))]
            assert expected == found[: len(expected)]
            assert found[len(expected) :] in ([], self.trying)
            self.known |= dict(enumerate(value for value in found if value))
            self.trying = []
            with store.consumer("mail", group="g", auto_commit=False) as consumer:
                assert self.committed <= (consumer.committed()[0] or 0) <= len(found)
                consumer.seek(afterlog.EARLIEST)
                for message in (message for messages in iter(consumer.poll, []) for message in messages):
                    assert message.value is not None
                    said = self.delivered.get(message.delivery_offset, (message.offset, message.value.decode()))
                    assert said == (message.offset, message.value.decode())
            store.check()


def test_killed_again_and_again(tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    chance, oracle = random.Random(seed), Oracle()
    for cycle in range(CYCLES):
        command = [sys.executable, "-c", CHILD, str(tmp_path), str(seed + cycle)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as child:
            assert child.stdout is not None
            for _ in range(chance.randrange(1, 80)):
                oracle.hear(child.stdout.readline())
            child.kill()
            for line in child.stdout:  # said before it died
                if line.endswith("\n"):
                    oracle.hear(line)
        oracle.verify(tmp_path)
    print(len(oracle.known), "records acknowledged")
    assert len(oracle.known) > CYCLES
