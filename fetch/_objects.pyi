from collections.abc import Mapping

from afterlog.fetch.objects import Column, Made

def made(cls: type[Made], count: int, columns: Mapping[str, Column]) -> list[Made]: ...
