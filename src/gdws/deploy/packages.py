"""Packages that only some of what gdws does needs."""

from __future__ import annotations

import importlib
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gdws.core.errors import GdwsError


def require(module: str, extra: str = "engines") -> Any:
    """Import a module of an extra, or say how to get it.

    The engines would report their use to their vendors, and keep a number for that in the user's folder: here they do not. Who
    wants it sets ORT_DISABLE_TELEMETRY=0, or imports openvino before gdws does.
    """
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    try:
        with _hidden("openvino_telemetry"), _some_home():  # OpenVINO and NNCF do without
            return importlib.import_module(module)
    except ImportError:
        package = module.partition(".")[0]
        raise GdwsError(f"{package} is not installed: expected it here (pip install 'gdws[{extra}]')") from None


@contextmanager
def _hidden(module: str) -> Iterator[None]:
    """Inside, a module cannot be imported, unless it has been."""
    if module in sys.modules:
        yield
        return
    sys.modules[module] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        sys.modules.pop(module, None)


@contextmanager
def _some_home() -> Iterator[None]:
    """Inside, even a user without a home has one: NNCF asks for it and needs none."""
    try:
        Path.home()
    except RuntimeError:
        os.environ["HOME"] = tempfile.gettempdir()
        try:
            yield
        finally:
            del os.environ["HOME"]
    else:
        yield
