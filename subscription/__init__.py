"""Subscriptions: many readers of one topic, with leases, single acks, retries and dead letters."""
