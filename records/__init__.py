"""What bytes mean: batches and entries, encoded and decoded, one at a time or as columns."""
