"""From the log to its readers: records in delivery order, as batches, columns or messages."""
