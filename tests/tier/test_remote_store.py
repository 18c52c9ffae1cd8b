from __future__ import annotations

import pytest

from afterlog.base.names import manifest_key, remote_segment_key
from afterlog.tier.remote_store import check_key
from tests.tier.remote_store_suite import BAD_KEYS
from tests.tier.support import attempt


@pytest.mark.parametrize(
    "key",
    [
        "a",
        "A.b_c-1/..x/-",
        manifest_key("mail-0"),
        remote_segment_key("m-0", 1, attempt(1), ".log"),
    ],
)
def test_keys_that_we_make(key: str) -> None:
    assert key == check_key(key)


@pytest.mark.parametrize("key", BAD_KEYS, ids=lambda key: ascii(key[:20]))
def test_keys_that_nobody_should(key: str) -> None:
    with pytest.raises(ValueError, match="cannot be a key"):
        check_key(key)
