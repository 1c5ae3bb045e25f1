"""Packages that only some of what deploys networks needs."""

from __future__ import annotations

import importlib
from typing import Any

from gdws.errors import GdwsError


def require(module: str) -> Any:
    """Import a module of the extra `engines`, or say how to get it."""
    try:
        return importlib.import_module(module)
    except ImportError:
        package = module.partition(".")[0]
        raise GdwsError(f"{package} is not installed: expected it here (pip install 'gdws[engines]')") from None
