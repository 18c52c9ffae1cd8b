"""Which lease of a record: each handing-out has a number of its own, which with the record's place is its receipt.

    bits 0..31    deliveries of it that failed: what policies go by, and readers see as redelivery_count
    bits 32..47   releases, which count as no failure
    bits 48..62   seeks, behind which a record is handed out as if never before; these wrap, like the rest

What settles a record by the number of another lease does nothing. So a request that is made again because its answer
was lost touches nobody else's lease, whatever has happened in between. No numpy here: clients have messages alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from afterlog.index.growing_columns import Int64Array

FAILED = 1
RELEASED = 1 << 32
SOUGHT = 1 << 48

LeaseNumbers = TypeVar("LeaseNumbers", int, "Int64Array")


def failures(lease_number: LeaseNumbers) -> LeaseNumbers:
    """How many deliveries failed before this lease, or each of these."""
    return lease_number & (RELEASED - 1)


def deliveries(lease_number: LeaseNumbers) -> LeaseNumbers:
    """How often it was handed out, this lease and those that were given back included.

    Behind 65,535 of these it begins anew.
    """
    return failures(lease_number) + (lease_number // RELEASED) % (SOUGHT // RELEASED) + 1


def behind_a_seek(first: int) -> int:
    """The number of first leases, where it was this one."""
    return (first + SOUGHT) & ((1 << 63) - 1)
