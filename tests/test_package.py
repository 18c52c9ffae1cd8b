from __future__ import annotations

import doctest
import importlib
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import afterlog
from afterlog.base import errors
from afterlog.base.errors import InvalidArgument

ROOT = Path(__file__).parent.parent
FOLDERS = ("afterlog", *sorted(path.name for path in (ROOT / "afterlog").iterdir() if path.is_symlink()))
MODULES = sorted(
    f"{'afterlog' if folder == 'afterlog' else f'afterlog.{folder}'}.{path.stem}".removesuffix(".__init__")
    for folder in FOLDERS
    for path in (ROOT / folder).glob("*.py")
)
KEPT_INSIDE = {"StorageError", "RemoteError"}
"""Never raised itself: its leaves are the names to catch."""


def run(code: str) -> str:
    """What a fresh interpreter prints."""
    command = [sys.executable, "-W", "error", "-c", code]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60).stdout


def test_every_name_is_there() -> None:
    assert sorted(set(afterlog.__all__)) == sorted(afterlog.__all__)
    for name in afterlog.__all__:
        assert getattr(afterlog, name) is not None
    namespace: dict[str, object] = {}
    exec("from afterlog import *", namespace)
    assert set(afterlog.__all__) <= set(namespace)
    assert sorted(afterlog.__all__) == sorted(dir(afterlog))


def test_every_name_comes_from_where_type_checkers_see_it() -> None:
    """The lazy table, the imports for type checkers, and the list name the same."""
    source = inspect.getsource(afterlog)
    block = source[source.index("if TYPE_CHECKING:") : source.index("_HOME = {")]
    lazy = set(afterlog._MODULE_OF)
    assert lazy | {"__version__", "connect", "open"} == set(afterlog.__all__)
    for name in lazy:
        assert name in block
        assert getattr(importlib.import_module(afterlog._MODULE_OF[name]), name) is getattr(afterlog, name)


def test_every_error_is_public() -> None:
    raised = {
        name for name, value in vars(errors).items() if inspect.isclass(value) and value.__module__ == errors.__name__
    }
    assert raised - KEPT_INSIDE <= set(afterlog.__all__)


def test_no_other_name() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = afterlog.nothing


def test_importing_loads_neither_numpy_nor_the_engine() -> None:
    loaded = run("import sys, afterlog; print(*sorted(sys.modules))").split()
    assert "afterlog" in loaded
    assert not {"numpy", "afterlog.store.store", "afterlog.base.errors", "asyncio", "pathlib"} & (
        set(loaded) - set(run("import sys; print(*sys.modules)").split())
    )


def test_a_name_loads_no_more_than_it_needs() -> None:
    loaded = run("import sys; from afterlog import StoreClosed, Config, ManualClock; print(*sys.modules)").split()
    assert "afterlog.base.errors" in loaded
    assert "numpy" not in loaded


def test_pyarrow_and_rich_are_loaded_by_who_wants_them() -> None:
    loaded = run("import sys, afterlog; afterlog.Store; print(*sys.modules)").split()
    assert "afterlog.store.store" in loaded
    assert not {"pyarrow", "rich", "click", "pandas", "obstore", "prometheus_client", "opentelemetry"} & set(loaded)


NOT_TO_SEND = {
    "argparse", "asyncio", "click", "concurrent.futures", "email", "importlib.metadata", "random", "shutil", "socket",
    "tempfile", "zipfile",
    "afterlog.fetch.partition", "afterlog.fetch.timeline", "afterlog.offline", "afterlog.produce.adoption",
    "afterlog.produce.producer", "afterlog.subscription.subscription", "afterlog.tier.tiering",
}  # fmt: skip
"""What costs a program its start, and sends nothing."""


def test_who_opens_a_store_and_sends_loads_no_more_than_that(tmp_path: Path) -> None:
    store = f"afterlog.open({str(tmp_path)!r})"
    run(f"import afterlog; {store}.create_topic('mail')")
    loaded = run(
        f"import sys, numpy; before = set(sys.modules); import afterlog\n"
        f"with {store} as store: store.send('mail', b'x', delay=60)\n"
        f"print(*set(sys.modules) - before)"
    ).split()
    assert {"afterlog.store.store", "afterlog.log.partition_log"} <= set(loaded)
    assert not NOT_TO_SEND & set(loaded)


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings(name: str) -> None:
    if name.endswith("__main__"):
        return
    module = importlib.import_module(name)
    assert (module.__doc__ or "").strip()
    if ">>>" in Path(str(module.__file__)).read_text("utf-8"):
        assert 0 == doctest.testmod(module).failed


def test_the_tour_has_an_example() -> None:
    assert doctest.testmod(afterlog).attempted > 2


class TestFolders:
    """What names a store's folder."""

    @pytest.mark.parametrize("empty", ["", " "])
    def test_nothing_names_none(self, empty: str) -> None:
        for opening in (afterlog.open, afterlog.connect):
            with pytest.raises(InvalidArgument, match="path is empty"):
                opening(empty)

    def test_the_users_own(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HOME", str(tmp_path))
        with afterlog.open("~/data") as store:
            assert tmp_path / "data" == store.path
        with pytest.raises(InvalidArgument):
            afterlog.open("~nobody-of-this-name/data")


def test_what_one_sees_of_what_is_open(tmp_path: Path) -> None:
    with afterlog.open(tmp_path / "data") as store:
        store.create_topic("mail", partitions=2)
        fifo = store.create_topic("audit", delayed=False)
        store.pause("mail")
        assert "<Topic mail, 2 partitions, paused>" == repr(store.topic("mail"))
        assert "<Topic audit, 1 partition, FIFO>" == repr(fifo)
        assert f"<Store at {tmp_path / 'data'}>" == repr(store)
        with store.consumer("mail", group="g") as consumer:
            assert "<Consumer of mail, partitions 0, 1>" == repr(consumer)
        assert "<Consumer of mail, partitions 0, 1, closed>" == repr(consumer)
        worker = afterlog.Worker(store)
        worker.handle("mail")(print)
        assert f"<Worker of {store!r}: mail as worker>" == repr(worker)
    assert f"<Store at {tmp_path / 'data'}, closed>" == repr(store)
