"""The tests of object storage on a real S3 server: `make test-s3`, never part of `make test`. See radosgw.py."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import boto3  # type: ignore[import-untyped]
import numpy as np
import pytest

from afterlog.base.errors import RemoteRefused
from afterlog.tier.remote_store import RemoteStore
from afterlog.tier.remote_url import open_remote
from tests.tier.life_suite import LifeTests
from tests.tier.radosgw import KEY, SECRET, radosgw
from tests.tier.remote_store_suite import SharedStoreTests
from tests.tier.test_upload import UploadTests

_BUCKET = "bucket"
Options = dict[str, object]


@pytest.fixture(scope="session")
def options(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Options]:
    with radosgw(tmp_path_factory.mktemp("ceph")) as endpoint:
        client = boto3.client(
            "s3", endpoint_url=endpoint, aws_access_key_id=KEY, aws_secret_access_key=SECRET, region_name="us-east-1"
        )
        client.create_bucket(Bucket=_BUCKET)
        yield {
            "endpoint": endpoint,
            "region": "us-east-1",
            "access_key_id": KEY,
            "secret_access_key": SECRET,
            "client_options": {"allow_http": True},
        }


@pytest.fixture(scope="session")
def new_remote(options: Options) -> Callable[[], RemoteStore]:
    numbers = itertools.count()
    return lambda: open_remote(f"s3://{_BUCKET}/{next(numbers)}", **options)  # type: ignore[arg-type]


class TestRadosGateway(SharedStoreTests, UploadTests, LifeTests):
    @pytest.fixture
    def remote(self, new_remote: Callable[[], RemoteStore]) -> RemoteStore:
        return new_remote()

    def test_an_object_in_parts(self, remote: RemoteStore) -> None:
        data = np.random.default_rng(7).integers(0, 256, 40 << 20, np.uint8)
        remote.put("large", data)
        assert len(data) == remote.head("large").size
        ranges = [(0, 1), ((16 << 20) - 5, (16 << 20) + 5), (len(data) - 9, len(data))]
        for (start, end), part in zip(ranges, remote.get_ranges("large", ranges), strict=True):
            assert data[start:end].tolist() == part.tolist()

    def test_a_wrong_secret_is_refused(self, options: Options) -> None:
        with pytest.raises(RemoteRefused):
            open_remote(f"s3://{_BUCKET}", **{**options, "secret_access_key": "wrong"}).put("a", b"1")  # type: ignore[arg-type]
