from __future__ import annotations

import pickle

import numpy as np
import pytest

from afterlog.fetch.message import Message
from afterlog.subscription.received import Receipts
from tests.subscription.support import Setting, values


def test_a_sequence_over_columns() -> None:
    setting = Setting(partitions=2)
    setting.store.send("mail", b"a", key=b"k", headers=[("h", None)], partition=0)
    setting.send(b"b", b"c", partition=1)
    with setting.subscribe() as sub:
        received = sub.receive()
        assert [3, 3] == [len(received), len(received.columns)]
        assert "<Received: 3 of mail>" == repr(received)
        assert received._messages is None, "nothing asked for one"
        first = next(message for message in received if message.partition == 0)
        assert isinstance(first, Message)
        assert ("mail", b"k", b"a", (("h", None),)) == (first.topic, first.key, first.value, first.headers)
        assert received[0] is next(iter(received)) is received[:1][0]
        assert [b"a", b"b", b"c"] == sorted(filter(None, values(received)))
        with pytest.raises(IndexError):
            received[3]
        assert not first.settled
        assert all(column.flags.c_contiguous for column in Receipts.of(received))
        sub.ack_many(received)
        assert all(message.settled for message in received)
    setting.store.close()


def test_receipts_by_partition() -> None:
    column = np.arange(4)
    receipts = Receipts(np.array([1, 0, 1, 1]), column, column + 10, column + 20)
    assert [(0, [1]), (1, [0, 2, 3])] == [(number, part.offset.tolist()) for number, part in receipts.by_partition()]
    one = receipts.at(receipts.partition == 1)
    assert [(1, one)] == [*one.by_partition()]
    assert [] == [*Receipts.of([]).by_partition()]
    assert pickle.loads(pickle.dumps(one)).delivery_offset.tolist() == [10, 12, 13]
