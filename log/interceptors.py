"""The interceptors that a topic's settings name (PIP-70), found by the names under which they are registered.

A name is one of this package's, or an entry point of an installed package:

    [options.entry_points]
    afterlog.interceptors =
        region = ours.metadata:Region

The entry point is called without arguments, once for each partition that is opened. A document in a store's folder
names what is installed already: whoever can write there cannot have other code imported.
"""

from __future__ import annotations

from collections.abc import Sequence

from afterlog.base.environment import entry_point
from afterlog.base.errors import InvalidTopic
from afterlog.records.entry import AppendBrokerTimestamp, AppendIndex, BrokerEntryMetadataInterceptor

GROUP = "afterlog.interceptors"
OWN: dict[str, type[BrokerEntryMetadataInterceptor]] = {
    "AppendBrokerTimestamp": AppendBrokerTimestamp,
    "AppendIndex": AppendIndex,
}


def interceptors_of(topic: str, names: Sequence[str]) -> tuple[BrokerEntryMetadataInterceptor, ...]:
    """The interceptors of these names, made anew. Raises InvalidTopic where one is not there, or is none."""
    return tuple(_made(topic, name) for name in names)


def _made(topic: str, name: str) -> BrokerEntryMetadataInterceptor:
    if name in OWN:
        return OWN[name]()
    found = entry_point(GROUP, name)
    if found is None:
        raise InvalidTopic(
            f"topic {topic} has the interceptor {name!r}, which is not registered here: install the package that has "
            f"it among its entry points {GROUP!r}; without one there are {', '.join(OWN)}"
        )
    try:
        interceptor = found.load()()
    except Exception as error:  # it is anybody's code
        raise InvalidTopic(
            f"interceptor {name!r} of topic {topic}, {found.value}, cannot be made: {error!r}"
        ) from error
    if not isinstance(interceptor, BrokerEntryMetadataInterceptor):
        raise InvalidTopic(f"interceptor {name!r} of topic {topic}, {found.value}, has no method intercept")
    return interceptor
