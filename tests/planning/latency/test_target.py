"""Where a network may run."""

import pytest

from gdws.core.errors import GdwsError
from gdws.planning.latency.target import Target


@pytest.mark.parametrize(
    "wrong",
    [
        {"engine": "tpu"},
        {"engine": "torch"},
        {"precision": "int4"},
        {"precision": "float16"},
        {"engine": "cuda", "precision": "int8"},
        {"batch": 0},
        {"threads": 0},
    ],
)
def test_targets_that_cannot_be_are_refused(wrong):
    with pytest.raises(GdwsError, match=r"the target .* expected"):
        Target(**wrong)
