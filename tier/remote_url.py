"""From a URL to a `RemoteStore`: the one place that knows which implementation serves what."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from afterlog.base.errors import RemoteRefused
from afterlog.base.files import Files, OsFiles
from afterlog.tier.directory_store import DirectoryStore
from afterlog.tier.object_store import SCHEMES, ObjectStore
from afterlog.tier.remote_store import RemoteStore


def open_remote(url: str, *, files: Files | None = None, **options: Any) -> RemoteStore:
    """The object storage at `url`; what follows the bucket is put in front of every key.

        s3://bucket/prefix  gs://bucket/prefix  az://container/prefix      needs the extra `tiered`
        memory://                                                          the same; each call opens an empty one
        /mnt/backup  file:///mnt/backup                                    a directory that is there

    `options` go to obstore: `region`, `endpoint`, `access_key_id`, …, `client_options`, `retry_config`,
    `credential_provider`; without them credentials come from the environment. RemoteRefused, ImportError.
    """
    scheme, separator, rest = url.partition("://")
    if not separator or scheme == "file":
        if options:
            raise RemoteRefused(f"a directory takes no {', '.join(options)}", path=url)
        return DirectoryStore(files or OsFiles(), Path(rest if separator else url))
    if scheme not in SCHEMES:
        raise RemoteRefused(f"no storage is known for {scheme[:20]!r}", path=scheme[:20])
    return ObjectStore.open(url, **options)
