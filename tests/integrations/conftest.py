"""Django is set up once for a process: with its tasks, and with ours as the backend of some."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session", autouse=True)
def django_set_up() -> None:
    from tests.integrations.django_setup import set_up

    set_up()
