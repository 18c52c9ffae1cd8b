"""What a store's server and its clients say to each other: records, receipts, positions, errors, as JSON and text."""
