"""How every command of the command line behaves: where the store is, and what an error becomes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from afterlog.errors import (
    AfterlogError,
    ClockBehind,
    CorruptFile,
    GroupBusy,
    NotPending,
    OffsetOutOfRange,
    StorageError,
    StoreLocked,
    UnknownPartition,
    UnknownTopic,
)

if TYPE_CHECKING:
    from afterlog.store import Store

EXIT_CODES = """\b
Exit codes:
  0    done; nothing found
  1    verify found something; repair would do something; not pending
  2    wrong usage, or input that cannot be taken
  3    no such folder, file, topic or position
  4    not now: open elsewhere, group busy, clock behind
  5    corrupt; see `afterlog verify` and `afterlog repair`
  6    the disk is full, or failed
  130  interrupted
"""
FINDINGS, NOT_FOUND, NOT_NOW, CORRUPT, DISK, INTERRUPTED = 1, 3, 4, 5, 6, 130

DATA = click.argument("data", envvar="AFTERLOG_DATA", type=click.Path(path_type=Path))
JSON = click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")


class Failure(click.ClickException):
    """An error that people should see as one line, with its exit code."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code

    @staticmethod
    def of(error: AfterlogError | OSError) -> Failure:
        match error:
            case UnknownTopic() | UnknownPartition() | OffsetOutOfRange() | FileNotFoundError() | NotADirectoryError():
                code = NOT_FOUND
            case StoreLocked() | GroupBusy() | ClockBehind():
                code = NOT_NOW
            case CorruptFile():
                code = CORRUPT
            case NotPending():
                code = FINDINGS
            case StorageError() | OSError():
                code = DISK
            case _:
                code = 2
        return Failure(str(error), code)


class Cli(click.Group):
    """Errors become one line and an exit code; a command may return its exit code."""

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


def opened(data: Path, create: bool = False) -> Store:
    """The store, which must be there unless it may be made."""
    from afterlog.files import OsFiles
    from afterlog.offline import is_store
    from afterlog.store import open_store

    if not create and not is_store(OsFiles(), data):
        raise Failure(f"there is no store in {data}", NOT_FOUND)
    return open_store(data.absolute(), None, None, None)
