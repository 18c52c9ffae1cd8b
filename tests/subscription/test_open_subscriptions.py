from __future__ import annotations

from collections.abc import Iterator

import pytest

from afterlog.base.errors import InvalidTopic, NameTaken, StorageFull, StoreClosed
from tests.subscription.support import Setting, values
from tests.support import killed


@pytest.fixture
def setting() -> Iterator[Setting]:
    setting = Setting(partitions=2)
    yield setting
    setting.store.check()
    setting.store.close()


def open_parts(setting: Setting) -> list[int]:
    setting.store._subscriptions.check()
    return sorted(each.partition.number for each in setting.store._subscriptions)


def test_each_partition_is_open_as_long_as_somebody_reads_it(setting: Setting) -> None:
    assert [] == open_parts(setting)
    both = setting.subscribe()
    one = setting.subscribe(partitions=[1])
    assert both.shared[1] is one.shared[0]
    assert [0, 1] == open_parts(setting)
    both.close()
    both.close()
    assert [1] == open_parts(setting)
    one.close()
    assert [] == open_parts(setting)
    with setting.subscribe() as again:
        assert again.shared[1] is not one.shared[0]


def test_where_one_partition_fails_none_stays_open(setting: Setting) -> None:
    setting.calls.failing = lambda operation, path: (
        StorageFull("no room", path=path) if operation == "append" and "mail-1/" in str(path) else None
    )
    with pytest.raises(StorageFull):
        setting.subscribe()
    setting.calls.failing = lambda operation, path: None
    assert [] == open_parts(setting)
    with setting.subscribe():
        pass


def test_a_name_is_a_groups_or_a_subscriptions(setting: Setting) -> None:
    setting.send(b"a")
    with setting.subscribe(partitions=[1]), pytest.raises(NameTaken, match="is a subscription to mail"):
        setting.store.consumer("mail", group="sender")
    with pytest.raises(NameTaken):
        setting.store.consumer("mail", group="sender")
    with setting.store.consumer("mail", group="reader", partitions=[0]) as consumer:
        with pytest.raises(NameTaken, match="that reads mail"):
            setting.subscribe("reader", partitions=[1])
        consumer.poll()
    with pytest.raises(NameTaken, match="is a consumer group of mail"):
        setting.subscribe("reader")
    setting.open(killed(setting.disk))
    with pytest.raises(NameTaken):
        setting.store.consumer("mail", group="sender")
    with pytest.raises(NameTaken):
        setting.subscribe("reader")
    with setting.store.consumer("mail", group="reader") as consumer:
        assert [] == values(consumer.poll())
    for wrong in ("", "a/b", "-a"):
        with pytest.raises(InvalidTopic):
            setting.subscribe(wrong)


def test_not_in_a_store_that_is_closed(setting: Setting) -> None:
    sub = setting.subscribe()
    setting.store.close()
    for call in (setting.subscribe, sub.receive):
        with pytest.raises(StoreClosed):
            call()
    setting.open(killed(setting.disk))
