"""A Ceph RADOS gateway on loopback: a real S3 server from Debian's packages, for `make test-s3`.

    apt-get install --no-install-recommends radosgw ceph-mon ceph-osd ceph-common

or, without installing anything, the same packages unpacked into one folder (`dpkg -x`), which AFTERLOG_CEPH_TREE names.
One monitor, one OSD on a file, one gateway, all in a folder of their own: no root, no systemd, no configuration of the
machine is read or changed. About 15 s until it serves.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path

TREE = Path(os.environ.get("AFTERLOG_CEPH_TREE", "/"))
KEY, SECRET = "afterlog", "afterlog-secret"
_PATIENCE_S = 60.0
_CONF = """
[global]
fsid = {fsid}
mon host = v2:127.0.0.1:{mon_port}
auth cluster required = none
auth service required = none
auth client required = none
ms bind ipv6 = false
public addr = 127.0.0.1
cluster addr = 127.0.0.1
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 4
osd crush chooseleaf type = 0
mon allow pool size one = true
mon osd full ratio = 0.99
mon osd nearfull ratio = 0.98
mon osd backfillfull ratio = 0.985
mon data avail crit = 1
osd objectstore = bluestore
bluestore block size = 4294967296
osd class dir = {library}/rados-classes
erasure code dir = {library}/ceph/erasure-code
plugin dir = {library}/ceph
run dir = {folder}
admin socket =
log file = {folder}/$name.log
crash dir = {folder}
mon data = {folder}/mon
osd data = {folder}/osd

[client.rgw]
ms mon client mode = crc
rgw data = {folder}
rgw frontends = beast endpoint=127.0.0.1:{port}
"""


class Ceph:
    """Programs of Ceph, run from the tree on one configuration."""

    def __init__(self, folder: Path) -> None:
        library = next((TREE / "usr/lib").glob("*-linux-gnu*/rados-classes")).parent
        self.folder = folder
        self.port = _free_port()
        self.fsid = str(uuid.uuid4())
        self.mon_port = _free_port()
        self._conf = folder / "ceph.conf"
        self._conf.write_text(
            _CONF.format(folder=folder, fsid=self.fsid, mon_port=self.mon_port, port=self.port, library=library)
        )
        self._environment = {
            **os.environ,
            "LD_LIBRARY_PATH": ":".join(
                str(path) for path in (library, library / "ceph", *TREE.glob("lib/*-linux-gnu*"))
            ),
            "PYTHONPATH": str(TREE / "usr/lib/python3/dist-packages"),
            "CEPH_CONF": str(self._conf),
        }

    def run(self, program: str, *arguments: str) -> str:
        """What it prints. CalledProcessError, TimeoutExpired."""
        command = [*self._command(program), "-c", str(self._conf), *arguments]
        return subprocess.run(
            command, env=self._environment, check=True, capture_output=True, text=True, timeout=_PATIENCE_S
        ).stdout

    @contextlib.contextmanager
    def running(self, program: str, *arguments: str) -> Iterator[None]:
        """In the foreground, until the end of the block."""
        with (self.folder / f"{program}.out").open("w") as out:
            process = subprocess.Popen(
                [*self._command(program), "-c", str(self._conf), "-f", *arguments],
                env=self._environment,
                stdout=out,
                stderr=out,
            )
            try:
                yield
            finally:
                process.terminate()
                try:
                    process.wait(10)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()

    def _command(self, program: str) -> list[str]:
        path = str(TREE / "usr/bin" / program)
        return ["/usr/bin/python3", path] if program == "ceph" else [path]


@contextlib.contextmanager
def radosgw(folder: Path) -> Iterator[str]:
    """Its endpoint, with a user `KEY`. `folder`: empty, with 1 GiB of room, and a path without blanks."""
    ceph = Ceph(folder)
    (folder / "mon").mkdir()
    (folder / "osd").mkdir()
    monmap = str(folder / "monmap")
    ceph.run("monmaptool", "--create", "--addv", "a", f"[v2:127.0.0.1:{ceph.mon_port}]", "--fsid", ceph.fsid, monmap)
    ceph.run("ceph-mon", "--mkfs", "-i", "a", "--monmap", monmap)
    with contextlib.ExitStack() as stack:
        stack.enter_context(ceph.running("ceph-mon", "-i", "a"))
        osd = str(uuid.uuid4())
        ceph.run("ceph", "osd", "new", osd)
        ceph.run("ceph-osd", "--mkfs", "-i", "0", "--osd-uuid", osd)
        stack.enter_context(ceph.running("ceph-osd", "-i", "0"))
        for ratio, value in (("full", "0.99"), ("backfillfull", "0.985"), ("nearfull", "0.98")):
            ceph.run("ceph", "osd", f"set-{ratio}-ratio", value)
        user = json.loads(
            ceph.run(
                "radosgw-admin", "-n", "client.rgw", "user", "create", "--uid=afterlog", "--display-name=afterlog",
                f"--access-key={KEY}", f"--secret-key={SECRET}",
            )
        )  # fmt: skip
        assert KEY == user["keys"][0]["access_key"]
        stack.enter_context(ceph.running("radosgw", "-n", "client.rgw"))
        endpoint = f"http://127.0.0.1:{ceph.port}"
        _wait_for(endpoint)
        yield endpoint


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def _wait_for(endpoint: str) -> None:
    until_s = time.monotonic() + _PATIENCE_S
    while True:
        try:
            with urllib.request.urlopen(endpoint, timeout=5):
                return
        except (urllib.error.URLError, OSError):
            if time.monotonic() > until_s:
                raise
            time.sleep(0.1)
