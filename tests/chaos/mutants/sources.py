"""What all checks of spoiled files share."""

from __future__ import annotations

import functools

from chaos import material
from chaos.case import Case
from chaos.material import whole

BY_COMMAND = 0.01
"""Share of the mutants that go through the command line."""


@functools.cache
def content_of(source: str) -> bytes:
    """The whole file; the caches' names hold hashes, so those have names of their own."""
    if source == "statistics":
        return material.statistics_file(material.ROOT).read_bytes()
    if source == "latency":
        return material.latency_file(material.ROOT).read_bytes()
    return whole(source)


def by_command(case: Case) -> bool:
    return case.random.random() < BY_COMMAND
