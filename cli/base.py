"""How every command of the command line behaves: where the store is, and what an error becomes."""

from __future__ import annotations

import errno
import importlib
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import click

from afterlog.base.environment import variable
from afterlog.base.errors import (
    AfterlogError,
    ClockBehind,
    CorruptFile,
    CorruptRemote,
    GroupBusy,
    NotPending,
    NotServed,
    OffsetOutOfRange,
    RemoteMissing,
    RemoteRefused,
    RemoteUnavailable,
    ServerBusy,
    ServerNotTrusted,
    ServerUnavailable,
    StorageError,
    StoreLocked,
    TopicBusy,
    UnknownGroup,
    UnknownPartition,
    UnknownSchedule,
    UnknownSubscription,
    UnknownTopic,
)

if TYPE_CHECKING:
    from afterlog.cli.status import OpenStore
    from afterlog.client.served_store import ServedStore
    from afterlog.store.store import Store
    from afterlog.tier.remote_store import RemoteStore

Command = TypeVar("Command", bound="Callable[..., Any]")
FolderOrAddress: TypeAlias = Path | str
"""The folder of a store, or the address of its server."""

EXIT_CODES = """\b
Exit codes:
  0    done; nothing found
  1    verify, scrub or repair found something; restore misses something; not pending; cut short; dead letters stay
  2    wrong usage, or input that cannot be taken
  3    no such folder, file, topic or position
  4    not now: open elsewhere, group busy, clock behind, object storage or a server does not answer
  5    corrupt; see `afterlog verify`, `afterlog repair`, and for object storage `afterlog scrub`
  6    the disk is full, or failed; object storage refused, or belongs to another store
  7    not allowed: a file's permissions, a token, a certificate
  130  interrupted
"""
FINDINGS, NOT_FOUND, NOT_NOW, CORRUPT, DISK, FORBIDDEN, INTERRUPTED = 1, 3, 4, 5, 6, 7, 130
IN_SHELL = tuple(
    (re.compile(said), meant)
    for said, meant in (
        (r"create it with store\.create_topic\('([^']*)'\)", r"`afterlog create DATA \1` makes it"),
        (r"store\.schedules\(\)", "`afterlog schedules list DATA`"),
        (r"send without delay or deliver_after", "send without --delay and --at"),
        (r"with delayed=False", "with --fifo"),
        (r"with delayed=True", "without --fifo"),
        (r"\bmax_delay_ms\b", "--max-delay"),
        (r"\blocal_retention_ms\b", "--local-retention"),
        (r"\blocal_retention_bytes\b", "--local-retention-bytes"),
        (r"\bretention_by_subscriptions=True", "--retention-by-subscriptions"),
        (r"\bremote_storage_enable(=True)?", "--remote-storage"),
        (r"afterlog\.open\(path, remote=…\)", "--remote URL"),
        (r"\bcheck_instants=False", "`afterlog alter DATA TOPIC --any-instant`"),
        (r", or call with force=True", ""),
    )
)
"""What errors advise to callers of Python, and how it is done here."""

SERVER_S = 10.0
"""For which a server is tried again."""


class DataType(click.ParamType):  # type: ignore[type-arg]
    """The folder of a store, or the address of a server, which stays text."""

    name = "data"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> FolderOrAddress:
        return value if isinstance(value, str) and is_address(value) else Path(value)


def is_address(text: str) -> bool:
    return text.startswith(("http://", "https://", "unix:"))


DATA = click.argument("data", envvar="AFTERLOG_DATA", type=click.Path(path_type=Path))
LIVE_DATA = click.argument("data", envvar="AFTERLOG_DATA", type=DataType())
JSON = click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
YES = click.option("--yes", "-y", "agreed", is_flag=True, help="Do not ask.")
_remote = partial(
    click.option,
    "--remote",
    envvar="AFTERLOG_REMOTE",
    metavar="URL",
    help="Object storage: s3://bucket/prefix, gs://…, az://…, or a folder. Credentials come from the environment.",
)
REMOTE = _remote()
_NOTED = "afterlog.remote"


def _note_remote(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    ctx.meta[_NOTED] = value


def store_arguments(command: Command) -> Command:
    """DATA, and the --remote that `opened` opens it with."""
    return LIVE_DATA(_remote(expose_value=False, callback=_note_remote)(command))


class Failure(click.ClickException):
    """An error that people should see as one line, with its exit code."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code

    @staticmethod
    def of(error: AfterlogError | OSError) -> Failure:
        match error:
            case CorruptFile() | CorruptRemote() | RemoteMissing():  # the last is a FileNotFoundError, too
                code = CORRUPT
            case (
                UnknownTopic()
                | UnknownPartition()
                | UnknownSchedule()
                | UnknownSubscription()
                | UnknownGroup()
                | OffsetOutOfRange()
            ):
                code = NOT_FOUND
            case FileNotFoundError() | NotADirectoryError():
                code = NOT_FOUND
            case (
                StoreLocked()
                | GroupBusy()
                | TopicBusy()
                | ClockBehind()
                | RemoteUnavailable()
                | ServerUnavailable()
                | ServerBusy()
                | NotServed()
            ):
                code = NOT_NOW
            case NotPending():
                code = FINDINGS
            case RemoteRefused():
                code = DISK
            case ServerNotTrusted() | PermissionError():  # NotAllowed is one
                code = FORBIDDEN
            case StorageError() | OSError():
                code = FORBIDDEN if error.errno in (errno.EACCES, errno.EPERM) else DISK
            case _:
                code = 2
        message = str(error)
        for said, meant in IN_SHELL:
            message = said.sub(meant, message)
        return Failure(message, code)


class Cli(click.Group):
    """Errors become one line and an exit code; a command may return its exit code."""

    def __init__(self, *args: Any, elsewhere: Mapping[str, Sequence[str]] | None = None, **extra: Any) -> None:
        """elsewhere: the commands of other modules of this folder, which are imported when they are asked for."""
        super().__init__(*args, **extra)
        self._module_of = {name: module for module, names in (elsewhere or {}).items() for name in names}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *self._module_of})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in self._module_of and cmd_name not in self.commands:
            module = importlib.import_module(f"afterlog.cli.{self._module_of[cmd_name]}")
            self.add_command(getattr(module, cmd_name.replace("-", "_")))
        return super().get_command(ctx, cmd_name)

    def main(self, *args: Any, **extra: Any) -> Any:
        try:
            code = super().main(*args, **(extra | {"prog_name": "afterlog", "standalone_mode": False}))
        except click.exceptions.NoArgsIsHelpError as error:
            error.show()
            code = error.exit_code
        except click.ClickException as error:
            click.echo(f"afterlog: {' '.join(error.format_message().split())}", err=True)
            code = error.code if isinstance(error, Failure) else error.exit_code
        except click.Abort:
            code = INTERRUPTED
        except SystemExit:  # click's answer to a broken pipe: whoever read the output has had enough
            code = 0
        sys.exit(code or 0)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            code = super().invoke(ctx)
            sys.stdout.flush()
            return code
        except BrokenPipeError:  # click has an answer to it
            raise
        except (AfterlogError, OSError) as error:
            raise Failure.of(error) from error


class StoreCommand(click.Command):
    """A command whose first argument is DATA. Where AFTERLOG_DATA is set DATA is left out, or has a / in it."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        folder = self.params[0].resolve_envvar_value(ctx)
        if folder:
            first = self.make_parser(ctx).parse_args(list(args))[0].get("data")
            if not isinstance(first, str) or ("/" not in first and first not in (".", "..")):
                args = [folder, *args]
        return super().parse_args(ctx, args)


def remote_store(url: str | None) -> RemoteStore:
    """The object storage that --remote names, for who cannot do without."""
    from afterlog.tier.remote_url import open_remote

    if not url:
        raise click.UsageError("no object storage: give --remote, or set AFTERLOG_REMOTE")
    try:
        return open_remote(url)
    except ImportError as error:
        raise Failure(str(error), click.UsageError.exit_code) from error


def noted_remote() -> RemoteStore:
    """The same, for a command with `store_arguments`."""
    return remote_store(click.get_current_context().meta.get(_NOTED))


def opened(data: FolderOrAddress, create: bool = False, background: bool = True) -> OpenStore:
    """The store, which must be there unless it may be made; with the object storage that --remote names, if it does.

    Where another process has it open and serves it, what its server gives; so, too, where DATA is the address of one.
    """
    if isinstance(data, str):
        return _connected(data)
    try:
        return opened_here(data, create, background)
    except StoreLocked as locked:
        served = _served(data)
        if served is None:
            raise locked from None
        return served


def opened_here(
    data: FolderOrAddress,
    create: bool = False,
    background: bool = True,
    partial: bool = False,
    serves: bool = False,
) -> Store:
    """The same, for what only the process does that has the store open: StoreLocked where that is another one.

    `background`, `partial`, `serves`: as of `open_store`.
    """
    from afterlog.base.files import OsFiles
    from afterlog.log.topics_document import is_store
    from afterlog.store.store import open_store

    if isinstance(data, str):
        name = click.get_current_context().info_name
        raise NotServed(f"`afterlog {name}` is not done by a server: give the folder of a store that no process has")
    if not create and not is_store(OsFiles(), data):
        raise Failure(f"there is no store in {data}", NOT_FOUND)
    remote = noted_remote() if click.get_current_context().meta.get(_NOTED) else None
    return open_store(data.absolute(), None, None, None, remote, background=background, partial=partial, serves=serves)


def _connected(address: str | Path) -> ServedStore:
    from afterlog.client.served_store import connect

    store = connect(address, token=variable("AFTERLOG_TOKEN") or None, timeout=SERVER_S, ca=None, clock=None)
    store.info()
    return store


def _served(folder: Path) -> ServedStore | None:
    """None where whoever has the folder does not serve it."""
    from afterlog.base.files import OsFiles
    from afterlog.base.names import SERVER_SOCKET

    if not OsFiles().exists(folder / SERVER_SOCKET):
        return None
    try:
        return _connected(folder)
    except ServerUnavailable:
        return None
