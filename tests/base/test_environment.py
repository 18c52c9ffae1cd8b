from __future__ import annotations

import io
import os
import sys
import termios
from pathlib import Path

import pytest

import afterlog
from afterlog.base import environment
from tests.support import PATIENCE_S, Background


def test_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AFTERLOG_TEST", "before")
    assert "before" == environment.variable("AFTERLOG_TEST")
    environment.set_variable("AFTERLOG_TEST", "after")
    assert "after" == environment.variable("AFTERLOG_TEST")
    monkeypatch.delenv("AFTERLOG_TEST")
    assert "" == environment.variable("AFTERLOG_TEST")


def test_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "java"
    program.write_text("")
    assert environment.program("java", tmp_path) is None
    program.chmod(0o755)
    assert program == environment.program("java", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert program == environment.program("java")


def test_the_folder_that_others_import_from() -> None:
    assert Path(afterlog.__file__).parent.parent == environment.import_folder()
    assert str(environment.import_folder()) in [str(Path(entry).absolute()) for entry in sys.path]


class TestKeyboard:
    def test_keys_come_at_once_unseen_until_the_terminal_ends(self) -> None:
        outside, inside = os.openpty()
        before = termios.tcgetattr(inside)
        with environment.Keyboard(inside) as keyboard:
            assert b"" == keyboard.typed(0)
            os.write(outside, b"q")
            assert b"q" == keyboard.typed(PATIENCE_S)
        assert before == termios.tcgetattr(inside)
        with environment.Keyboard(inside) as keyboard:
            os.close(outside)
            assert environment.CTRL_D == keyboard.typed(PATIENCE_S)
        os.close(inside)

    def test_what_is_no_terminal_has_none(self, tmp_path: Path) -> None:
        with (tmp_path / "file").open("w") as file:
            assert environment.Keyboard.of(file) is None
        assert environment.Keyboard.of(None) is None


class TestPipe:
    def test_what_its_reader_has_taken(self) -> None:
        reading, writing = os.pipe()
        with os.fdopen(reading, "rb", 0) as reader, os.fdopen(writing, "wb", 0) as output:
            pipe = environment.Pipe.of(output)
            assert pipe is not None
            output.write(b"1234")
            taken = Background(pipe.is_taken)
            assert b"12" == reader.read(2)
            assert b"34" == reader.read(2)
            assert taken.answer()
            output.write(b"5678")
            reader.read(3)
            reader.close()
            assert not pipe.is_taken()
            with pytest.raises(BrokenPipeError):
                output.write(b"9")

    def test_a_reader_that_took_all_and_went(self) -> None:
        reading, writing = os.pipe()
        with os.fdopen(writing, "wb", 0) as output:
            pipe = environment.Pipe.of(output)
            output.write(b"1234")
            os.read(reading, 9)
            os.close(reading)
            assert pipe is not None
            assert pipe.is_taken()

    def test_what_is_no_pipe(self, tmp_path: Path) -> None:
        with open(tmp_path / "a", "wb") as file:
            assert environment.Pipe.of(file) is None
        assert environment.Pipe.of(io.BytesIO()) is None


class TestDescriptors:
    """What may be open, with another system's limits in place of this one's."""

    @staticmethod
    def allowed(monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, most: int) -> tuple[int | None, list[int]]:
        """What it answers, and what it asked for; the system gives up to `most`."""
        asked: list[int] = []

        def limit(_: int, limits: tuple[int, int]) -> None:
            asked.append(limits[0])
            assert hard == limits[1]
            if not 0 <= limits[0] <= most:
                raise ValueError("current limit exceeds maximum limit")

        monkeypatch.setattr("resource.getrlimit", lambda _: (soft, hard))
        monkeypatch.setattr("resource.setrlimit", limit)
        return environment.allow_descriptors(), asked

    @pytest.mark.parametrize(("soft", "known"), [(1_024, 1_024), (-1, None)])
    def test_how_many_that_are(self, monkeypatch: pytest.MonkeyPatch, soft: int, known: int | None) -> None:
        monkeypatch.setattr("resource.getrlimit", lambda _: (soft, soft))
        assert known == environment.descriptors()

    @pytest.mark.parametrize(
        ("soft", "hard", "most", "answer", "asked"),
        [
            (1_024, 4_096, 4_096, 4_096, [4_096]),
            (4_096, 4_096, 4_096, 4_096, []),
            (256, (1 << 63) - 1, 10_240, 10_240, [(1 << 63) - 1, 10_240]),  # macOS
            (20_000, (1 << 63) - 1, 20_000, 20_000, [(1 << 63) - 1]),
            (256, 4_096, 0, 256, [4_096, 4_096]),
            (256, -1, 0, 256, []),
        ],
    )
    def test_as_many_as_the_system_gives(
        self, monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, most: int, answer: int, asked: list[int]
    ) -> None:
        assert (answer, asked) == self.allowed(monkeypatch, soft, hard, most)
