"""From the log to its readers: records in delivery order, as batches, columns or messages.

It takes no leases and knows no acks: that is `subscription`. A fetch is a position and one reading of the clock; what
many readers want is merged once. Begin with `partition`, then `timeline`; `consumer` is a reader with a committed
position.
"""
