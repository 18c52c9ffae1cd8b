"""The topic of a queue, whatever a framework calls it.

    mail.urgent            mail.urgent
    celery@host            celery_x40_host           a byte that no topic's name has (of UTF-8), in hex
    a_xb                   a_x5F_xb                   and an underscore before an x or an h, so that no two names meet
    a name that is long    its beginning, _h, and 32 hex digits of its BLAKE2b

A topic's name has 1 to 249 of a-z A-Z 0-9 . _ - (Kafka's).
"""

from __future__ import annotations

import re
from hashlib import blake2b
from typing import Final

NAME_MAX: Final = 249
_SPECIAL: Final = re.compile(rb"_(?=[xh])|[^A-Za-z0-9._-]")


def topic_of(prefix: str, queue: str) -> str:
    """Of a queue, behind a prefix that is a topic's name so far."""
    data = queue.encode("utf-8", "surrogatepass")
    escaped = _SPECIAL.sub(lambda found: b"_x%02X_" % found[0][0], data).decode("ascii")
    room = NAME_MAX - len(prefix)
    if len(escaped) <= room:
        return prefix + escaped
    digest = "_h" + blake2b(data, digest_size=16).hexdigest()
    return prefix + escaped[: room - len(digest)] + digest
