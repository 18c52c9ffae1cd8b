"""One call to a server as a value, and the answer to it. Nothing here waits, sends or receives.

    store.cancel(id) ──> Steps: yields a Call ──> whoever can sends it, gets a reply ──> the answer, sent back in

A method of the API is a generator: it yields what it has to ask, one after the other, and returns what its caller gets.
So the blocking client and that for asyncio share all of it, and differ in who runs the steps. `ServerConnection` is the
seam to a server, over HTTP (`http_connection`) or otherwise.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Coroutine, Generator, Mapping
from typing import TYPE_CHECKING, Any, Concatenate, Generic, NamedTuple, ParamSpec, Protocol, TypeAlias, TypeVar

from afterlog.api.operation import JSON, HttpOperation
from afterlog.api.problem import error_of
from afterlog.base.errors import AfterlogError, ServerFailed, ServerUnavailable, StoreClosed

if TYPE_CHECKING:
    from afterlog.client.polls import Polls, Waking


AnswerOf = TypeVar("AnswerOf")
StepParameters = ParamSpec("StepParameters")


class HttpRequest(NamedTuple):
    """What goes over the wire."""

    method: str
    path: str
    body: bytes = b""
    kind: str = JSON
    """Of the body."""
    accept: str = JSON


class HttpReply(NamedTuple):
    """What comes back. kind: the media type of the body, without parameters."""

    status: int
    kind: str
    body: bytes


class Numbered(Protocol):
    """By which the log knows a send again: a `ProducerSequence`, or a lane's."""

    @property
    def producer_id(self) -> int: ...
    @property
    def epoch(self) -> int: ...
    @property
    def sequence(self) -> int: ...


class LaneSequence(NamedTuple):
    """One of a lane's; see `Numbered`."""

    producer_id: int
    epoch: int
    sequence: int


class Sending(NamedTuple):
    """Records for one partition, that are there once however often they are sent."""

    topic: str
    partition: int
    records: int
    request: Callable[[Numbered], HttpRequest]


class Call(NamedTuple, Generic[AnswerOf]):
    """One request, and how its answer is read. again: it may be made twice, where the first answer was lost."""

    request: HttpRequest
    read: Callable[[HttpReply], AnswerOf]
    again: bool = True
    wait_s: float = 0.0
    """The server may take so long to answer, on purpose."""
    patience_s: float | None = None
    """How long to try; None: as long as the client does."""
    polls: Polls | None = None
    """Who may end the wait."""
    sending: Sending | None = None
    """The request is made of this, by who has a producer id."""

    def answer(self, reply: HttpReply) -> AnswerOf:
        """Raises what the server says, ServerFailed where it says what is no answer."""
        if reply.status >= 400:
            raise refusal(reply)
        try:
            return self.read(reply)
        except AfterlogError:
            raise
        except (LookupError, TypeError, ValueError) as error:
            raise ServerFailed(f"the server's answer to {self!r} is none: {error!r:.300}") from error

    def __repr__(self) -> str:
        return f"{self.request.method} {self.request.path}"


class Pause(NamedTuple):
    """Nothing is to be asked before this is woken, or `until_ms` by the server's clock, or so many seconds are over."""

    waking: Waking
    version: int
    until_ms: int
    seconds: float


Steps: TypeAlias = Generator["Call[Any] | Pause", Any, AnswerOf]


def asking(
    operation: HttpOperation,
    read: Callable[[Any], AnswerOf],
    body: Mapping[str, Any] | None = None,
    *,
    query: Mapping[str, Any] | None = None,
    wait_s: float = 0.0,
    patience_s: float | None = None,
    polls: Polls | None = None,
    **names: str,
) -> Call[AnswerOf]:
    """A call of an operation in JSON, both ways. read: is given what the answer holds. names: those in its path."""
    path = operation.path_of(query, **names)
    return Call(
        request=HttpRequest(operation.method, path, b"" if body is None else json_bytes(body)),
        read=lambda reply: read(json_of(reply)),
        again=operation.repeatable,
        wait_s=wait_s,
        patience_s=patience_s,
        polls=polls,
    )


def with_sequence(asked: Call[AnswerOf], sequence: Numbered) -> Call[AnswerOf]:
    """The same of a caller who numbers what is sent."""
    assert asked.sending is not None, "records are sent"
    return asked._replace(request=asked.sending.request(sequence), sending=None)


def one(asked: Call[AnswerOf]) -> Steps[AnswerOf]:
    """The steps that ask this and nothing else."""
    answer: AnswerOf = yield asked
    return answer


def nothing(_: object) -> None:
    """What an answer says where it says nothing."""


_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


def json_bytes(body: object) -> bytes:
    return _encode(body).encode("utf-8", "surrogatepass")


def json_of(reply: HttpReply) -> Any:
    return json.loads(reply.body.decode()) if reply.body else None


def refusal(reply: HttpReply) -> AfterlogError:
    """The error that a server told. A store that is just being closed there may be opened again at once."""
    try:
        problem = json_of(reply)
    except ValueError:
        problem = None
    if not isinstance(problem, dict):
        text = reply.body[:200].decode("utf-8", "replace")
        kind = ServerUnavailable if reply.status in (502, 503, 504) else ServerFailed  # of a proxy, say
        return kind(f"HTTP {reply.status}: {text}")
    error = error_of(problem)
    return ServerUnavailable(str(error)) if type(error) is StoreClosed else error


def blocking(
    method: Callable[Concatenate[Any, StepParameters], Steps[AnswerOf]],
) -> Callable[Concatenate[Any, StepParameters], AnswerOf]:
    """The same as a method that blocks, of whoever has `_steps`, and `_drive` for them."""

    @functools.wraps(method)
    def made(self: Any, /, *args: StepParameters.args, **options: StepParameters.kwargs) -> AnswerOf:
        drive: Callable[[Steps[AnswerOf]], AnswerOf] = self._drive
        return drive(method(self._steps, *args, **options))

    return made


def awaited(
    method: Callable[Concatenate[Any, StepParameters], Steps[AnswerOf]],
) -> Callable[Concatenate[Any, StepParameters], Coroutine[Any, Any, AnswerOf]]:
    """The same as a method to be awaited."""

    @functools.wraps(method)
    async def made(self: Any, /, *args: StepParameters.args, **options: StepParameters.kwargs) -> AnswerOf:
        drive: Callable[[Steps[AnswerOf]], Coroutine[Any, Any, AnswerOf]] = self._drive
        return await drive(method(self._steps, *args, **options))

    return made


class ServerConnection(Protocol):
    """One request at a time: connect, exchange. After an error, or where it was closed, it connects anew."""

    def connect(self, timeout_s: float) -> None:
        """Where it is not connected. Raises ServerUnavailable, NotAllowed."""

    def exchange(self, request: HttpRequest, timeout_s: float) -> HttpReply:
        """Raises AnswerLost where the answer did not come in time, or at all."""

    def hang_up(self) -> None:
        """Whoever waits for a reply, or is about to, gets it soon, or AnswerLost. From any thread, once connected."""

    def close(self) -> None: ...


Connecting: TypeAlias = Callable[[], ServerConnection]
"""Makes a connection, not connected yet."""
