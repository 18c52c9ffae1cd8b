class Mapping:
    def __init__(self, descriptor: int, size: int) -> None: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    @property
    def lost_pages(self) -> int:
        """How many times a page, or all from a page on, could not be read."""

    @property
    def first_lost(self) -> int:
        """The first byte of the first of these, which are zeros now; -1 where there is none."""
