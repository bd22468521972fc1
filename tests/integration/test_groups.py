"""Tests that share what takes long to make run in one process; where they do not, nothing fails, but it takes long."""

from __future__ import annotations

import pytest


@pytest.mark.xdist_group("alone")
def test_tests_of_a_group_stay_together(request: pytest.FixtureRequest) -> None:
    if getattr(request.config.option, "loadgroup", False):  # a worker of `pytest --dist loadgroup`
        assert request.node.nodeid.endswith("@alone")
