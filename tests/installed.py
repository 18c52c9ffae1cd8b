"""A package that was installed, tried from elsewhere: all compiled modules, a send and a receive, a second process.

    python -I tests/installed.py

It needs nothing but what the package does, so that it can judge a wheel in a fresh environment.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import afterlog
from afterlog.base.compiled import missing

COUNT = 1_000


def main() -> None:
    place = Path(afterlog.__file__).resolve().parent
    assert place != Path(__file__).resolve().parents[1] / "afterlog", f"{place} is not installed"
    assert missing() == (), f"without {missing()}"
    with tempfile.TemporaryDirectory() as folder:
        clock = afterlog.ManualClock(1_700_000_000_000)
        with afterlog.open(folder, clock=clock) as store:
            store.create_topic("mail")
            one = store.send("mail", b"one", delay=1)
            due = [clock.now_ms() + 2_000 + number for number in range(COUNT)]
            store.send_many("mail", [b"%d" % number for number in range(COUNT)], deliver_after=due[::-1])
        clock.advance(60_000)
        with afterlog.open(folder, clock=clock) as store, store.subscribe("mail", "s") as subscription:
            message = subscription.receive(1)[0]
            assert (b"one", one.offset) == (message.value, message.offset)
            subscription.ack(message)
            received = subscription.receive(COUNT)
            assert due == received.columns.due.tolist()
            assert COUNT == subscription.ack_many(received).acked
        command = [sys.executable, "-I", "-m", "afterlog", "stats", folder]
        assert "mail" in subprocess.run(command, check=True, capture_output=True, text=True).stdout
    gil = getattr(sys, "_is_gil_enabled", lambda: True)()
    print(f"afterlog {afterlog.__version__} on {sys.version.split()[0]}, with {'' if gil else 'out '}the GIL: well")


if __name__ == "__main__":
    main()
