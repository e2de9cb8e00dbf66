"""Plans against every walk, by prices that are counted apart; tests/long/every_walk.sh has thousands of them."""
import os

import pytest

os.environ.setdefault("HEDDLE", os.path.join(os.environ["HEDDLE_BUILD"], "heddle"))

from judge.cases import judge  # noqa: E402


COUNTS = [("bytes", 50), ("time", 40), ("long", 20), ("memory", 50), ("regret", 25), ("rsa", 30)]


@pytest.mark.parametrize("kind, count", COUNTS)
def test_plans_are_the_best_walk(kind, count):
    assert judge(kind, count, os.environ.get("HEDDLE_SEED", "1")) == 0
