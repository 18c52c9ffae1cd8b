"""Bulk work on Spark: indexes of many segments, and records as DataFrames. What it is for: docs/spark.md.

session      a session for tests and the command line
location     what lies at a location: segments of a store, or of Kafka brokers; in a folder or in object storage
tasks        segments shared out to tasks, and rows that become a DataFrame
index_job    indexes of segments, built or verified by many cores
upload_job   sealed segments to object storage
bucket_job   runs of many segments merged into global buckets; bucket_plan: which, and how, without Spark
source       the data source `afterlog`: batch and stream, in delivery order
writer       its writing side: tasks prepare, the commit has the log adopt it; rows: from Arrow to columns
options ranges arrow    what it reads, cut into tasks, as Arrow; no Spark in these
"""
