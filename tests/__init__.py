"""The tests: a folder for each folder of the source, what looks at the source as a whole beside them, and

campaigns/    what attacks the engine as a whole: crashes, strikes, kills, machines, the simulated disk, planted bugs
conformance/  one suite for each way to have a store: embedded, shared, served, for threads and for tasks
fuzzing/      decoders under hostile bytes; corpus/ is what was found
golden/       a folder of each version of the formats, written once
fenced/       signatures, HTTP, durable steps and walks as they were recorded: fence.py
browser/      the server's page in Chromium
"""
