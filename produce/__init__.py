"""Records on their way in: topics, the buffered producer, what jobs prepare and the log adopts.

It decides which partition and which batch; stamping and writing is `log`. Begin with `topic`, then `producer`.
"""
