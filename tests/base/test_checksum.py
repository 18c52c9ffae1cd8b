from __future__ import annotations

import subprocess
import sys
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec

import crc32c as package
import pytest

from afterlog.base.checksum import crc32c


@pytest.mark.parametrize("data", [b"", b"123456789", bytes(range(256)) * 999])
def test_it_is_that_of_the_package(data: bytes) -> None:
    assert package.crc32c(data) == crc32c(data)
    assert crc32c(data) == crc32c(data[4:], crc32c(data[:4]))
    assert crc32c(data) == crc32c(memoryview(data))


def test_the_check_value() -> None:
    assert 0xE3069283 == crc32c(b"123456789")


def test_the_package_itself_is_not_loaded() -> None:
    code = "import sys; from afterlog.base.checksum import crc32c; print(crc32c(b'a') != 0, 'crc32c' in sys.modules)"
    assert "True False" == subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip()


def test_the_package_is_taken_where_its_module_lies_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = find_spec("afterlog.base.checksum")
    assert spec is not None
    assert spec.loader is not None
    anew = module_from_spec(spec)
    monkeypatch.setattr(PathFinder, "find_spec", lambda *_: None)
    spec.loader.exec_module(anew)
    assert anew.crc32c is package.crc32c
