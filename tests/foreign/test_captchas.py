"""Captchas that are learned from change all the while, and are not those that are judged on."""

import itertools
import time

import foreign.pool
import pytest
import torch
from detector import CHECK_SEED, LEARNED_SEED
from foreign import captchas, pictures

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")  # Python 3.12


@pytest.fixture
def pool(monkeypatch):
    """Of pictures that are gray in the order that they were drawn in, 100 apart for each process."""

    def draw(photographs, fonts, seed):
        for count in itertools.count():
            yield torch.full((3, captchas.SIDE, captchas.SIDE), float(100 * seed + count % 100))
            time.sleep(0.001)

    monkeypatch.setattr(foreign.pool, "draw", draw)
    with foreign.pool.Pool([], [], places=6, processes=2, batch=8, device=torch.device("cpu"), seed=0) as made:
        yield made


def test_batches_come_from_all_processes_and_are_drawn_anew(pool):
    batches = iter(pool)
    early = next(batches)
    assert early.shape == (8, 3, captchas.SIDE, captchas.SIDE)
    assert early.dtype == torch.float32
    before = pool.drawn.clone()
    while (pool.drawn < before + 10).any():
        time.sleep(0.01)
    late = torch.cat([next(batches) for _ in range(4)])[:, 0, 0, 0]
    assert (late < 100).any()
    assert (late >= 100).any()
    assert set(late.tolist()) - set(early[:, 0, 0, 0].tolist())


def test_nothing_is_drawn_any_more_at_the_end(pool):
    with pool:
        next(iter(pool))
    for worker in pool.workers:
        worker.join(10)
        assert not worker.is_alive()


def test_no_seed_is_both_learned_from_and_judged_on():
    """Bug: a process drew from the seed of the judged captchas, and 72 of 300 had signs that were learned from."""
    learned = range(LEARNED_SEED, LEARNED_SEED + 1024)  # a process for every other core
    assert not {captchas.CALIBRATION_SEED, captchas.TEST_SEED, CHECK_SEED} & set(learned)


@pytest.mark.network
def test_photographs_that_are_judged_on_are_not_learned_from(cache, fetched):
    test, calibration = (fetched(lambda of=of: set(of(cache))) for of in (pictures.test_files, pictures.calibration_files))
    assert (len(test), len(calibration), len(test & calibration)) == (18, 32, 0)
