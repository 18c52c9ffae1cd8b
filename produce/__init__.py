"""Records on their way in: topics, the buffered producer, what jobs prepare and the log adopts."""
