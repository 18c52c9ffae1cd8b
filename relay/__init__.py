"""Delayed topics for a Kafka that is there: records go from inputs to the topics that they name, once they are due.

Kafka is the log, the judge and the group; nothing here is distributed, and nothing here is the truth. What a worker has
on disk is a cache, which it makes again from Kafka. Each record is delivered in one transaction with what says that it
was (`rectangle`), so exactly once. Begin with `relay_partition`, which has the rules; `relay` runs them.
"""
