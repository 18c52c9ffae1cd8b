"""Bulk work on Spark: indexes of many segments, and records as DataFrames. What it is for: docs/spark.md.

session      a session for tests and the command line
location     what lies at a location: segments of a store, or plain Kafka's
index_job    indexes of segments, built or verified by many cores
source       the data source `afterlog`: batch and stream, in delivery order
options ranges arrow    what it reads, cut into tasks, as Arrow; no Spark in these
"""
