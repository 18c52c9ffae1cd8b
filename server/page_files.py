"""The web page at `/`: static files under a policy that lets them load nothing from elsewhere.

No token is asked for here: the page asks for it itself, and each of its calls is checked as anybody's.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Final

from afterlog.base.files import OsFiles, read_file
from afterlog.server.endpoint import Endpoint, Handler
from afterlog.server.request import Reply, Request
from afterlog.server.served import Served

FOLDER: Final = Path(__file__).parent / "page"
INDEX: Final = "index.html"
NAMES: Final = (
    INDEX, "icon.svg", "style.css", "theme.js",
    "api.js", "bytes.js", "dead_letters_view.js", "dialogs.js", "dom.js", "figures.js", "format.js", "histogram.js",
    "main.js", "partitions_view.js", "polling.js", "rates.js", "record_dialog.js", "records_view.js", "route.js",
    "schedule_view.js", "schedules_view.js", "session.js", "subscriptions_view.js", "table.js", "tiles.js",
    "time_axis.js", "topic_acts.js", "topic_view.js", "topics_view.js",
)  # fmt: skip
"""Listed, not found: what else lies there is not served."""
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
HEADERS: Final = (
    (b"content-security-policy", POLICY.encode()),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)


@lru_cache(maxsize=len(NAMES))
def page_file(name: str) -> bytes:
    """A file of the page, read once."""
    return bytes(read_file(OsFiles(), FOLDER / name))


def media_type_of(name: str) -> str:
    return _TYPES[Path(name).suffix]


def _handler(name: str) -> Handler:
    async def show(served: Served, request: Request) -> Reply:
        return Reply(page_file(name), media_type=media_type_of(name), headers=HEADERS)

    return show


def _endpoint(path: str, name: str) -> Endpoint:
    return Endpoint(method="GET", path=path, scope=None, summary="A file of the page", handler=_handler(name))


PAGE: Final = (_endpoint("/", INDEX), *(_endpoint(f"/{name}", name) for name in NAMES))
"""For people and their browsers: not of the API, and not in its description."""
