"""The unique-key arguments of a send, checked; what they need is imported when somebody uses them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from afterlog.base.errors import InvalidArgument, WrongType

if TYPE_CHECKING:
    from afterlog.records.unique_key import OnConflict


def unasked(unique: Any, on_conflict: Any) -> bool:
    """Whether a send says nothing of unique keys."""
    return unique is None and isinstance(on_conflict, str) and on_conflict == "raise"


def claim(unique_key: Any, on_conflict: Any) -> tuple[bytes, OnConflict]:
    """What a send says of its unique key. Raises InvalidRecord, InvalidArgument."""
    from afterlog.records.unique_key import checked_key, on_conflict_of

    return checked_key(_given(unique_key)), on_conflict_of(on_conflict)


def looked_up(unique_key: Any) -> bytes:
    """The key that a look asks for. Raises InvalidRecord, WrongType."""
    from afterlog.records.unique_key import checked_key

    if unique_key is None:
        raise WrongType("a unique key is looked up by its bytes, not None")
    return checked_key(unique_key)


def claims(unique_keys: Any, on_conflict: Any) -> tuple[list[bytes | None], OnConflict]:
    """The same of many. Raises as `claim` does."""
    from afterlog.records.unique_key import checked_keys, on_conflict_of

    return checked_keys(_given(unique_keys)), on_conflict_of(on_conflict)


def _given(unique: Any) -> Any:
    if unique is None:
        raise InvalidArgument("on_conflict says what becomes of a record with a unique key: give one, or leave it out")
    return unique
