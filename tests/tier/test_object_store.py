from __future__ import annotations

import contextlib
import socketserver
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, cast

import obstore.exceptions
import pytest

from afterlog.base.errors import RemoteError, RemoteMissing, RemoteRefused, RemoteUnavailable
from afterlog.tier.object_store import ObjectStore
from afterlog.tier.remote_store import RemoteStore
from afterlog.tier.remote_url import open_remote
from tests.support import PATIENCE_S
from tests.tier.remote_store_suite import RemoteStoreTests, SharedStoreTests


class TestMemory(RemoteStoreTests):
    @pytest.fixture
    def remote(self) -> RemoteStore:
        return open_remote("memory://")


class TestS3(SharedStoreTests):
    @pytest.fixture
    def remote(self, new_s3: Callable[[], RemoteStore]) -> RemoteStore:
        return new_s3()

    def test_a_bucket_that_is_not_there_is_no_missing_object(self, s3_endpoint: str) -> None:
        options: dict[str, Any] = {"client_options": {"allow_http": True}, "retry_config": {"max_retries": 0}}
        remote = ObjectStore.open(
            "s3://other", endpoint=s3_endpoint, region="us-east-1", skip_signature=True, **options
        )
        for call in (lambda: remote.put("a", b"1"), lambda: remote.get("a", 9), lambda: [*remote.list_objects()]):
            with pytest.raises(RemoteRefused):
                call()

    def test_a_server_that_is_not_there(self) -> None:
        remote = ObjectStore.open(
            "s3://bucket",
            endpoint="http://127.0.0.1:1",
            region="us-east-1",
            access_key_id="id",
            secret_access_key="canary",
            client_options={"allow_http": True},
            retry_config={"max_retries": 0},
        )
        with pytest.raises(RemoteUnavailable) as caught:
            remote.put("a", b"1")
        assert "canary" not in str(caught.value)


HEADERS = b'ETag: "x"\r\nLast-Modified: Wed, 21 Oct 2015 07:28:00 GMT\r\n'
ANSWERS = {
    "cut short": b"HTTP/1.1 206 Partial\r\nContent-Length: 100\r\nContent-Range: bytes 0-99/100\r\n%b\r\n0123"
    % HEADERS,
    "all instead of a range": b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n%b\r\n0123" % HEADERS,
    "no length": b"HTTP/1.1 200 OK\r\n%b\r\n0123" % HEADERS,
    "a lie about the length": b"HTTP/1.1 206 Partial\r\nContent-Length: 4\r\nContent-Range: bytes 0-9/10\r\n%b\r\n0123"
    % HEADERS,
    "half of XML": b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n%b\r\n<a><b></a" % HEADERS,
    "junk": b"\xff\xfe\r\n\r\n",
    "nothing": b"",
    "refused": b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n",
    "overload": b"HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\n\r\n",
}


@contextlib.contextmanager
def serving(answer: bytes) -> Iterator[int]:
    """A server that says the same to everybody and hangs up; its port."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.settimeout(PATIENCE_S)
            self.request.recv(1 << 16)
            self.request.sendall(answer)

    with socketserver.TCPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


class TestHostileServer:
    @pytest.mark.parametrize("answer", ANSWERS.values(), ids=list(ANSWERS))
    def test_whatever_it_answers_errors_are_ours(self, answer: bytes) -> None:
        with serving(answer) as port:
            remote = ObjectStore.open(
                "s3://bucket",
                endpoint=f"http://127.0.0.1:{port}",
                region="us-east-1",
                skip_signature=True,
                client_options={"allow_http": True, "timeout": "5s"},
                retry_config={"max_retries": 0},
            )
            with pytest.raises(RemoteError):
                remote.get_ranges("a", [(0, 100)])
            for call in (
                lambda: remote.get("a", 1_000),  # some of the answers are a good one to this
                lambda: [*remote.list_objects()],
                lambda: remote.delete("a"),
            ):
                with contextlib.suppress(RemoteError):
                    call()


class Answering:
    """A backend of which every method calls `answer` with the method's name and what else it was given."""

    def __init__(self, answer: Callable[..., Any]) -> None:
        self._answer = answer

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return partial(self._answer, name)


def answering(answer: Callable[..., Any]) -> ObjectStore:
    return ObjectStore(cast(Any, Answering(answer)))


def failing(error: Exception) -> ObjectStore:
    def fail(*arguments: object, **more: object) -> None:
        raise error

    return answering(fail)


class TestTags:
    def test_one_that_is_refused_with_quotes_is_tried_without(self) -> None:
        """As RADOS gateway does it."""
        tried = []

        def put(method: str, key: str, data: object, mode: dict[str, str]) -> dict[str, str]:
            tried.append(mode["e_tag"])
            if mode["e_tag"].startswith('"'):
                raise obstore.exceptions.PreconditionError("412")
            return {"e_tag": '"new"'}

        assert '{"e_tag": "\\"new\\""}' == answering(put).put_if("a", b"1", '{"e_tag": "\\"old\\""}')
        assert ['"old"', "old"] == tried

    def test_a_generation_number_is_a_version_too(self) -> None:
        """As Google Cloud Storage has it."""
        modes = []

        def put(method: str, key: str, data: object, mode: object) -> dict[str, str | None]:
            modes.append(mode)
            return {"e_tag": None, "version": str(len(modes))}

        remote = answering(put)
        remote.put_if("a", b"2", remote.put_if("a", b"1", None))
        assert ["create", {"version": "1"}] == modes

    def test_a_storage_without_versions_is_of_no_use(self) -> None:
        with pytest.raises(RemoteRefused, match="no versions"):
            answering(lambda *arguments, mode: {"e_tag": None, "version": None}).put_if("a", b"1", None)


class TestErrors:
    @pytest.mark.parametrize(
        ("error", "leaf"),
        [
            (obstore.exceptions.NotFoundError("gone"), RemoteMissing),
            (FileNotFoundError("gone"), RemoteMissing),
            (FileNotFoundError("404\n<Code>NoSuchBucket</Code>"), RemoteRefused),
            (obstore.exceptions.UnauthenticatedError("who?"), RemoteRefused),
            (obstore.exceptions.GenericError("503"), RemoteUnavailable),
        ],
    )
    def test_each_is_one_of_ours(self, error: Exception, leaf: type[Exception]) -> None:
        with pytest.raises(leaf) as caught:
            failing(error).head("a")
        assert leaf is type(caught.value)

    def test_deleting_what_is_not_there_is_none(self) -> None:
        """S3 and memory do not tell; Google and Azure do."""
        failing(FileNotFoundError("404")).delete("a")

    def test_no_signature_gets_out(self) -> None:
        error = obstore.exceptions.GenericError("PUT http://host/a?sig=canary failed - 500: <?xml?>canary\ncanary")
        with pytest.raises(RemoteUnavailable) as caught:
            failing(error).head("a")
        assert "PUT http://host/a?… failed - 500 (a)" == str(caught.value)
        assert caught.value.__suppress_context__

    def test_without_obstore_the_extra_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "obstore.store", None)
        with pytest.raises(ImportError, match=r"afterlog\[tiered\]"):
            open_remote("memory://")
