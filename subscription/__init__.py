"""Subscriptions: many readers of one topic, with leases, single acks, retries and dead letters.

State is a journal of events over delivery offsets, replayed when it is opened; records are read through `fetch`. Begin
with `subscription`, which users hold; `partition_subscription` is its share in a partition, `state` what it knows.
"""
