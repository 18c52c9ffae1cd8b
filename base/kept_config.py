"""Settings that are kept with a store: how its files are, and what limits hold, whoever opens it.

    afterlog-config 1 2b1c9a40\n
    {"segment_bytes":4194304,"compression":"zstd"}\n      what differs from the defaults

Who makes a store, or is the first to give it settings, says what they are; who opens it and gives none (a job of Spark,
the command line, `afterlog serve`) goes by them. Who gives settings goes by those, and changes nothing for the others:
that is `afterlog config --set`. A setting that this version does not know is passed over.

What an acknowledgement means (`durability`) is not kept: each process says that of itself, and who says nothing has the
strongest. Nor are interceptors, which are code.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from afterlog.base import document
from afterlog.base.config import Config
from afterlog.base.errors import CorruptFile, InvalidArgument
from afterlog.base.files import Files
from afterlog.base.names import CONFIG

FORMAT = "afterlog-config"
VERSION = 1
_OF_A_PROCESS = ("durability", "broker_entry_metadata_interceptors")
KEPT = {each.name: each.default for each in fields(Config) if each.name not in _OF_A_PROCESS}
"""Their names, and what they are by default."""

logger = logging.getLogger("afterlog.store")


def kept_settings(files: Files, store: Path) -> dict[str, Any] | None:
    """Of the store in a folder, by name; None where none are kept. Raises CorruptFile."""
    path = store / CONFIG
    try:
        body = document.read(files, path, FORMAT, VERSION)
    except FileNotFoundError:
        return None
    except CorruptFile as error:
        raise CorruptFile(f"{error.message}; `afterlog config --reset` keeps other settings", path=path) from error
    if unknown := body.keys() - KEPT.keys():
        logger.warning("%s: of a later version, and passed over: %s", path, ", ".join(sorted(unknown)))
    known = {name: value for name, value in body.items() if name in KEPT}
    try:
        Config(**known)
    except (InvalidArgument, TypeError) as error:
        raise CorruptFile(
            f"it keeps what cannot be: {error}; `afterlog config --reset` keeps others", path=path
        ) from error
    return known


def kept_config(files: Files, store: Path) -> Config:
    """What who gives no settings opens it with. Raises CorruptFile."""
    return Config(**(kept_settings(files, store) or {}))


def keep_config(files: Files, store: Path, config: Config) -> None:
    """Keep these settings, durably, where none are kept. For who has the store's lock."""
    if not files.exists(store / CONFIG):
        _write(files, store, {name: getattr(config, name) for name in KEPT})


def change_kept(files: Files, store: Path, changes: Mapping[str, Any], *, anew: bool = False) -> None:
    """Keep some other values. anew: of the rest the defaults. The same of the lock.

    Raises InvalidArgument, WrongType; CorruptFile where what is kept cannot be read, and it is not anew.
    """
    if unknown := changes.keys() - KEPT.keys():
        raise InvalidArgument(f"{min(unknown)!r} is not kept with a store; these are: {', '.join(KEPT)}")
    config = replace(Config() if anew else kept_config(files, store), **changes)
    _write(files, store, {name: getattr(config, name) for name in KEPT})


def _write(files: Files, store: Path, values: Mapping[str, Any]) -> None:
    body = {name: value for name, value in values.items() if value != KEPT[name]}
    document.write(files, store / CONFIG, FORMAT, VERSION, body)
