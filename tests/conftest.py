"""How Hypothesis runs here: as long as it takes, and with what is needed to run a failure again."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("afterlog", deadline=None, print_blob=True)
settings.load_profile("afterlog")
