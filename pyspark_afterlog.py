"""Lets Spark find the data source `afterlog` by itself: it looks for a `DefaultSource` in modules named pyspark_*."""

from __future__ import annotations

from afterlog.spark.source import AfterlogDataSource as DefaultSource

__all__ = ["DefaultSource"]
