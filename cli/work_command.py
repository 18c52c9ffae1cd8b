"""`afterlog work`: runs the handlers of a program until SIGTERM; SIGHUP loads the program anew.

SIGTERM, Ctrl-C ──> drain ──> the store is closed ──> the end
SIGHUP ───────────> drain ──> the store is closed ──> the same command in the same process (exec), with new code
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import signal
import sys
from typing import TYPE_CHECKING

import click

from afterlog.base.environment import run_anew
from afterlog.cli.base import FINDINGS, Failure
from afterlog.cli.input import Duration

if TYPE_CHECKING:
    from afterlog.worker import Worker

_LEVELS = ("debug", "info", "warning", "error")


@click.command()
@click.argument("target", metavar="MODULE:WORKER")
@click.option(
    "--drain", type=Duration(), default="25s", show_default=True, help="How long handlers have, once it is stopped."
)
@click.option("--log-level", type=click.Choice(_LEVELS), default="info", show_default=True)
def work(target: str, drain: int, log_level: str) -> int:
    """Run the afterlog.Worker that a module has, until SIGTERM or Ctrl-C.

    The module is imported with the working directory in front of the path: `afterlog work mail.jobs:worker` takes the
    name worker of mail/jobs.py. SIGTERM: nothing more is taken, handlers end; a second one ends the process. Exits
    with 1 where handlers took longer than --drain: what they had comes again.

    SIGHUP: the same, and then it runs itself again, with the module as it is now, under the same process id. In a
    terminal, whose end is a SIGHUP, it ends.
    """
    from afterlog.subscription.draining import Draining

    # Whoever sends a second one, while the first is heeded or the program is loaded anew, wants nothing more.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    logging.basicConfig(level=log_level.upper(), format="%(asctime)s %(levelname)s %(name)s %(message)s")
    worker = found(target)
    handlers = ", ".join(f"{each.topic} as {each.name}" for each in worker.handlers)
    # Around those of the worker, which are told of what comes: an end that is asked for beside a SIGHUP is the end.
    hangup, *ends = (Draining(worker, number, 0) for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT))
    with contextlib.ExitStack() as stack:
        for each in (hangup, *ends):
            stack.callback(each.end)
            each.begin()
        stack.callback(worker.store.close)
        click.echo(f"working: {handlers or 'nothing'}", err=True)
        is_drained = worker.run(drain / 1_000)
    if hangup.signalled and not any(each.signalled for each in ends) and not _in_terminal():
        click.echo("loading anew", err=True)
        run_anew()
    return 0 if is_drained else FINDINGS


def _in_terminal() -> bool:
    return sys.stdin is not None and sys.stdin.isatty()


def found(target: str) -> Worker:
    """The worker of `module:name`. Raises Failure where there is none; what the module raises is its own."""
    from afterlog.worker import Worker

    module, colon, name = target.partition(":")
    if not colon or not module or not name:
        raise click.UsageError(f"{target!r} is no MODULE:WORKER, as jobs:worker of jobs.py")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        imported = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise
        raise Failure(f"there is no module {error.name} here", click.UsageError.exit_code) from error
    worker = getattr(imported, name, None)
    if not isinstance(worker, Worker):
        raise Failure(f"{name} of {module} is no afterlog.Worker: {worker!r:.100}", click.UsageError.exit_code)
    return worker
