from __future__ import annotations

import asyncio
import importlib
import sys
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

import afterlog
import afterlog.aio
from afterlog import tracing
from afterlog.base.clock import ManualClock
from afterlog.base.errors import InvalidRecord, StorageFull, StoreClosed, UnknownTopic, WrongType
from afterlog.subscription.leased_message import LeasedMessage
from afterlog.worker import Worker
from tests.campaigns.simulated_disk import SimulatedFiles
from tests.support import NOW_MS, Background, eventually, open_small

pytestmark = pytest.mark.usefixtures("quiet")

EXPORTER = InMemorySpanExporter()
PROVIDER = TracerProvider()
PROVIDER.add_span_processor(SimpleSpanProcessor(EXPORTER))
TRACEPARENT = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture(autouse=True)
def provider(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not that of the process, which takes one, once."""
    monkeypatch.setattr(tracing, "_TRACER", PROVIDER.get_tracer("afterlog"))


@pytest.fixture
def store() -> Iterator[afterlog.Store]:
    EXPORTER.clear()
    with tracing.traced(open_small(SimulatedFiles(), ManualClock(NOW_MS))) as store:
        store.create_topic("mail")
        yield store


def spans() -> list[ReadableSpan]:
    """Those that have ended."""
    return [*EXPORTER.get_finished_spans()]


def carried(span: ReadableSpan) -> bytes:
    """The header that stands for it."""
    context = span.context
    assert context is not None
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}".encode()


def received(store: Any, topic: str = "mail") -> list[LeasedMessage]:
    with store.subscribe(topic, "s") as subscription:
        return [*subscription.receive()]


class TestSending:
    def test_a_span_whose_context_travels_in_the_record(self, store: afterlog.Store) -> None:
        sent = store.send("mail", b"a", headers=[("kind", b"welcome")])
        [span] = spans()
        assert ("send mail", SpanKind.PRODUCER, None) == (span.name, span.kind, span.parent)
        assert {
            "messaging.system": "afterlog",
            "messaging.operation.name": "send",
            "messaging.operation.type": "send",
            "messaging.destination.name": "mail",
            "messaging.destination.partition.id": "0",
            "messaging.message.id": str(sent),
        } == span.attributes
        [message] = received(store)
        assert (("kind", b"welcome"), ("traceparent", carried(span))) == message.headers

    def test_it_is_a_child_of_what_sends(self, store: afterlog.Store) -> None:
        with PROVIDER.get_tracer("test").start_as_current_span("request"):
            store.send("mail", b"a")
        sent, request = spans()
        assert sent.parent is not None
        assert request.context is not None
        assert (request.context.span_id, request.context.trace_id) == (sent.parent.span_id, sent.parent.trace_id)

    def test_many_have_one_span(self, store: afterlog.Store) -> None:
        store.send_many("mail", [b"a", b"b", b"c"])
        [span] = spans()
        assert 3 == (span.attributes or {})["messaging.batch.message_count"]
        assert [(("traceparent", carried(span)),)] * 3 == [each.headers for each in received(store)]

    def test_a_producer_s_lasts_until_it_is_safe(self, store: afterlog.Store) -> None:
        with store.producer("mail", linger_ms=600_000) as producer:
            future = producer.send(b"a", headers=[("k", b"v")])
            assert [] == spans()
            producer.flush()
            sent = future.result()
            eventually(lambda: len(spans()) == 1)
        [span] = spans()
        assert str(sent) == (span.attributes or {})["messaging.message.id"]
        assert [(("k", b"v"), ("traceparent", carried(span)))] == [each.headers for each in received(store)]

    def test_what_fails_is_noted(self, store: afterlog.Store) -> None:
        with pytest.raises(UnknownTopic):
            store.send("nobody", b"a")
        [span] = spans()
        assert StatusCode.ERROR == span.status.status_code
        assert "UnknownTopic" == (span.attributes or {})["error.type"]
        assert ["exception"] == [event.name for event in span.events]

    def test_so_is_what_a_producer_refuses(self, store: afterlog.Store) -> None:
        producer = store.producer("mail")
        producer.close()
        with pytest.raises(StoreClosed):
            producer.send(b"a")
        [span] = spans()
        assert StatusCode.ERROR == span.status.status_code

    @pytest.mark.parametrize("cancelled", [False, True])
    def test_so_is_what_fails_behind_it(
        self, store: afterlog.Store, monkeypatch: pytest.MonkeyPatch, cancelled: bool
    ) -> None:
        future: Future[Any] = Future()
        with store.producer("mail") as producer:
            monkeypatch.setattr(producer._inner, "send", lambda value, **_: future)  # type: ignore[attr-defined]
            producer.send(b"a")
            assert [] == spans()
            if cancelled:
                future.cancel()
            else:
                future.set_exception(StorageFull("full", path=Path("log")))
        [span] = spans()
        assert (StatusCode.UNSET if cancelled else StatusCode.ERROR) == span.status.status_code
        assert cancelled or "StorageFull" == (span.attributes or {})["error.type"]

    def test_where_no_sdk_is_set_up_nothing_travels(
        self, store: afterlog.Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(tracing, "_TRACER", trace.NoOpTracer())
        store.send("mail", b"a")
        [message] = received(store)
        with tracing.handling(message):
            assert () == message.headers

    def test_a_context_that_is_there_is_kept_and_linked_to(self, store: afterlog.Store) -> None:
        store.send("mail", b"a", headers=[("traceparent", TRACEPARENT), ("tracestate", b"x=1")])
        [span] = spans()
        assert [0xB7AD6B7169203331] == [link.context.span_id for link in span.links]
        [message] = received(store)
        assert (("traceparent", TRACEPARENT), ("tracestate", b"x=1")) == message.headers

    @pytest.mark.parametrize("broken", [b"", b"00-zz", b"\xff\x00", None])
    def test_one_that_says_nothing_is_replaced(self, store: afterlog.Store, broken: bytes | None) -> None:
        store.send("mail", b"a", headers=[("traceparent", broken)])
        [span] = spans()
        assert () == span.links
        [message] = received(store)
        assert (("traceparent", carried(span)),) == message.headers

    def test_headers_that_are_no_pairs(self, store: afterlog.Store) -> None:
        with pytest.raises(InvalidRecord, match="pairs"):
            store.send("mail", b"a", headers={"a": b"b"})  # type: ignore[arg-type]

    def test_everything_else_is_the_store_s(self, store: afterlog.Store) -> None:
        assert ["mail"] == [each.name for each in store.topics()]
        assert "traced" in repr(store)

    def test_in_asyncio_by_a_block(self, tmp_path: Path) -> None:
        EXPORTER.clear()

        async def send() -> Any:
            async with afterlog.aio.open(tmp_path) as store:
                with pytest.raises(WrongType, match="sending"):
                    tracing.traced(store)  # type: ignore[type-var]
                await store.create_topic("mail")
                with tracing.sending("mail") as headers:
                    await store.send("mail", b"a", headers=headers)
                async with store.subscribe("mail", "s") as subscription:
                    async for message in subscription:
                        async with message:
                            with tracing.handling(message):
                                return message.headers
            raise AssertionError("nothing came")

        headers = asyncio.run(send())
        sent, handled = spans()
        assert (("traceparent", carried(sent)),) == headers
        assert same(sent, handled)


def same(sent: ReadableSpan, handled: ReadableSpan) -> bool:
    """Whether the handling links to the sending, and to nothing else; by ids, since what is linked to is remote."""
    assert sent.context is not None
    ids = [(link.context.trace_id, link.context.span_id) for link in handled.links]
    return [(sent.context.trace_id, sent.context.span_id)] == ids


class TestHandling:
    def test_a_span_that_links_to_the_sending(self, store: afterlog.Store) -> None:
        store.send("mail", b"a")
        with store.subscribe("mail", "sender") as subscription:
            [message] = subscription.receive()
            with message, tracing.handling(message) as span:
                assert trace.get_current_span() is span
        sent, handled = spans()
        assert ("process mail", SpanKind.CONSUMER, None) == (handled.name, handled.kind, handled.parent)
        assert same(sent, handled)
        assert {
            "messaging.system": "afterlog",
            "messaging.operation.name": "process",
            "messaging.operation.type": "process",
            "messaging.destination.name": "mail",
            "messaging.destination.partition.id": "0",
            "messaging.destination.subscription.name": "sender",
            "messaging.message.id": "mail-0@0",
            "afterlog.redelivery_count": 0,
        } == handled.attributes
        assert StatusCode.UNSET == handled.status.status_code

    def test_a_record_without_a_context(self, store: afterlog.Store) -> None:
        store._inner.send("mail", b"a")  # type: ignore[attr-defined]
        with store.consumer("mail", group="g") as consumer:
            [message] = consumer.poll()
            with tracing.handling(message):
                pass
        [handled] = spans()
        assert () == handled.links
        assert "messaging.destination.subscription.name" not in (handled.attributes or {})

    def test_a_failure_is_noted_and_the_message_comes_again(self, store: afterlog.Store) -> None:
        store.send("mail", b"a")
        with store.subscribe("mail", "sender") as subscription:
            [message] = subscription.receive()
            with message, tracing.handling(message):
                raise LookupError("no such address")
            assert 1 == subscription.stats().retrying
        handled = spans()[-1]
        assert (StatusCode.ERROR, "LookupError: no such address") == (
            handled.status.status_code,
            handled.status.description,
        )
        assert "LookupError" == (handled.attributes or {})["error.type"]

    def test_the_end_of_a_process_is_no_failure(self, store: afterlog.Store) -> None:
        store.send("mail", b"a")
        [message] = received(store)
        with pytest.raises(SystemExit), tracing.handling(message):
            raise SystemExit
        assert StatusCode.UNSET == spans()[-1].status.status_code

    def test_around_all_handlers_of_a_worker(self, store: afterlog.Store) -> None:
        """In threads and in the loop; what they send is a child of their span."""
        store.create_topic("next")
        worker = Worker(store, around=tracing.handling)

        @worker.handle("mail", "thread")
        def in_thread(message: LeasedMessage) -> None:
            store.send("next", b"thread")

        @worker.handle("mail", "loop")
        async def in_loop(message: LeasedMessage) -> None:
            await asyncio.sleep(0)
            store.send("next", b"loop")

        store.send("mail", b"a")
        running = Background(worker.run)
        eventually(lambda: len(spans()) == 5)
        worker.stop()
        assert running.answer()
        first = spans()[0]
        handled = [span for span in spans() if span.name == "process mail"]
        sent = [span for span in spans() if span.name == "send next"]
        assert all(same(first, each) for each in handled)
        assert {each.context.span_id for each in handled if each.context} == {
            each.parent.span_id for each in sent if each.parent
        }
        assert 2 == len(handled)


def test_without_opentelemetry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.context", None)
    monkeypatch.delitem(sys.modules, "afterlog.tracing")
    with pytest.raises(ImportError, match=r"afterlog\[otel\]"):
        importlib.import_module("afterlog.tracing")
