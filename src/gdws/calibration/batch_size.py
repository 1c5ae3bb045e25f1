"""How many samples are looked at together, so that what their convolutions see fits into memory."""

from __future__ import annotations

from collections.abc import Sequence

from gdws.core.sites import Site

LARGEST = 2 * 2**30
"""Bytes of all that is kept of one batch."""


def samples_at_once(sites: Sequence[Site], copies: int) -> int:
    """Samples whose inputs and outputs of all convolutions, in float32 and so many copies, take LARGEST bytes at most.

    copies: of both. A pass forward and back keeps about three: the maps, what lies between convolutions, and the gradients.
    """
    elements = sum(
        height * width * site.conv.in_channels + after * across * site.conv.out_channels
        for site in sites
        for height, width, after, across in site.maps
    )
    return max(1, LARGEST // max(1, 4 * copies * elements))
