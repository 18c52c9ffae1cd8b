"""Spans for OpenTelemetry (extra `otel`): of what is sent, and of what handlers do with it, perhaps days later.

    store = tracing.traced(afterlog.open("data"))         send ──> span "send mail" ──> header traceparent of the record
    with message, tracing.handling(message): ...          span "process mail", which links to that one

Names and attributes are those of the semantic conventions for messaging. As these say, handling is linked to the
sending and is no child of it: a trace would stay open for as long as the record is pending. The context travels as W3C
has it, in the record's headers `traceparent` and `tracestate`; one that is there already, of a record that is sent on,
is kept, and the sending links to it.

Nothing else imports this module: who doesn't trace pays nothing. Where no SDK is set up nothing is put into headers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import Future
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from afterlog._version import __version__
from afterlog.base.errors import WrongType
from afterlog.records.batch import own_headers

try:
    from opentelemetry.context import Context
    from opentelemetry.trace import (
        Link,
        Span,
        SpanKind,
        Status,
        StatusCode,
        get_current_span,
        get_tracer,
        set_span_in_context,
        use_span,
    )
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError as missing:
    raise ImportError("tracing needs opentelemetry-api: pip install 'afterlog[otel]'") from missing

if TYPE_CHECKING:
    from afterlog.fetch.message import Message
    from afterlog.fetch.record_id import RecordId
    from afterlog.records.batch import Headers
    from afterlog.records.columns import Int64Array
    from afterlog.surface import ProducerSurface, StoreSurface

AnyStore = TypeVar("AnyStore", bound="StoreSurface")

SYSTEM: Final = "afterlog"
"""Of the attribute messaging.system."""
_W3C: Final = TraceContextTextMapPropagator()
_TRACER: Final = get_tracer("afterlog", __version__)


def traced(store: AnyStore) -> AnyStore:
    """The store, whose `send`, `send_many` and producers make spans; everything else is its own.

    The span of a producer's send lasts until the record is safe. Raises WrongType of a store of `afterlog.aio`: there,
    wrap what you send in `sending`.
    """
    if not hasattr(store, "__enter__"):
        raise WrongType(f"{store!r:.100} is no store whose calls block: use `with tracing.sending(topic) as headers`")
    return cast(AnyStore, _TracedStore(store))


@contextlib.contextmanager
def sending(topic: str, headers: Headers = ()) -> Iterator[Headers]:
    """A block in which records are sent, with the headers that it gives: those handed over, and the span's context.

    In asyncio, too: ``with sending("mail") as headers: await store.send("mail", value, headers=headers)``. An exception
    is noted on the span, and goes on. Raises InvalidRecord where the headers are no pairs.
    """
    span, headers = _begun(topic, headers)
    with _in(span):
        yield headers


@contextlib.contextmanager
def handling(message: Message) -> Iterator[Span]:
    """A block in which a message is worked off, as a span, which it gives. An exception is noted on it, and goes on.

    Inside the message's own: ``with message, handling(message): …``; a worker does it of all of its handlers,
    `Worker(store, around=handling)`. What is sent in the block is a child of the span.
    """
    attributes: dict[str, str | int] = {
        **_attributes("process", message.topic),
        "messaging.destination.partition.id": str(message.partition),
        "messaging.message.id": str(message.id),
    }
    subscription = getattr(message, "subscription", None)
    if subscription is not None:
        attributes["messaging.destination.subscription.name"] = subscription.name
        attributes["afterlog.redelivery_count"] = getattr(message, "redelivery_count", 0)
    span = _TRACER.start_span(
        f"process {message.topic}", kind=SpanKind.CONSUMER, attributes=attributes, links=_links(message.headers)
    )
    with _in(span):
        yield span


def _attributes(operation: str, topic: str) -> dict[str, str | int]:
    return {
        "messaging.system": SYSTEM,
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
        "messaging.destination.name": topic,
    }


def _begun(topic: str, headers: Headers) -> tuple[Span, Headers]:
    """A span of a sending, and the headers that carry its context, unless they carried one before."""
    own = own_headers(headers)
    links = _links(own)
    span = _TRACER.start_span(
        f"send {topic}", kind=SpanKind.PRODUCER, attributes=_attributes("send", topic), links=links
    )
    carrier: dict[str, str] = {}
    if not links:
        _W3C.inject(carrier, set_span_in_context(span, Context()))
        own = [each for each in own if each[0] not in carrier]  # what is there, and says nothing
    return span, [*own, *((name, value.encode("ascii")) for name, value in carrier.items())]


def _links(headers: Headers) -> list[Link]:
    """To the span whose context the headers have; none where they have none."""
    carrier = {name: value.decode("latin-1") for name, value in headers if name in _W3C.fields and value is not None}
    context = get_current_span(_W3C.extract(carrier, Context())).get_span_context()
    return [Link(context)] if context.is_valid else []


@contextlib.contextmanager
def _in(span: Span) -> Iterator[None]:
    """The span is the current one; it ends with the block, and notes its exception."""
    try:
        with use_span(span, record_exception=False, set_status_on_exception=False):
            yield
    except Exception as error:  # the end of a process or a task is no failure
        _failed(span, error)
        raise
    finally:
        span.end()


def _failed(span: Span, error: BaseException) -> None:
    span.record_exception(error)
    span.set_attribute("error.type", type(error).__qualname__)
    span.set_status(Status(StatusCode.ERROR, f"{type(error).__name__}: {error}"))


class _Traced:
    """Something that is closed by a block, with some methods replaced."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __enter__(self) -> _Traced:
        self._inner.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._inner.__exit__(kind, error, trace)

    def __repr__(self) -> str:
        return f"<traced {self._inner!r}>"


class _TracedStore(_Traced):
    def send(self, topic: str, value: bytes | None, *, headers: Headers = (), **options: Any) -> RecordId:
        with sending(topic, headers) as carried:
            sent: RecordId = self._inner.send(topic, value, headers=carried, **options)
            _note(get_current_span(), sent)
        return sent

    def send_many(self, topic: str, values: Any, *, headers: Headers = (), **options: Any) -> Int64Array:
        with sending(topic, headers) as carried:
            offsets: Int64Array = self._inner.send_many(topic, values, headers=carried, **options)
            get_current_span().set_attribute("messaging.batch.message_count", len(offsets))
        return offsets

    def producer(self, topic: str, **options: Any) -> ProducerSurface:
        return cast("ProducerSurface", _TracedProducer(self._inner.producer(topic, **options), topic))


class _TracedProducer(_Traced):
    def __init__(self, inner: Any, topic: str) -> None:
        super().__init__(inner)
        self._topic = topic

    def send(self, value: bytes | None, *, headers: Headers = (), **options: Any) -> Future[RecordId]:
        span, carried = _begun(self._topic, headers)
        try:
            sent: Future[RecordId] = self._inner.send(value, headers=carried, **options)
        except BaseException as error:
            _failed(span, error)
            span.end()
            raise
        sent.add_done_callback(lambda done: _settled(span, done))
        return sent


def _settled(span: Span, sent: Future[RecordId]) -> None:
    error = None if sent.cancelled() else sent.exception()
    if error is not None:
        _failed(span, error)
    elif not sent.cancelled():
        _note(span, sent.result())
    span.end()


def _note(span: Span, sent: RecordId) -> None:
    span.set_attribute("messaging.message.id", str(sent))
    span.set_attribute("messaging.destination.partition.id", str(sent.partition))
