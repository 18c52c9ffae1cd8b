"""How Hypothesis runs here: as long as it takes, and with what is needed to run a failure again; how xdist shares out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from xdist.scheduler import LoadScopeScheduling

settings.register_profile("afterlog", deadline=None, print_blob=True)
settings.load_profile("afterlog")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    """Test by test to whoever is free, but those of tests/spark to one process: they share a Spark."""
    from xdist.scheduler import LoadScopeScheduling

    class SparkTogether(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return "spark" if nodeid.startswith("tests/spark/") else nodeid

    return SparkTogether(config, log)
