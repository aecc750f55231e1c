"""Code may move and be said otherwise; the cells of every profile keep their names."""

import pytest

from tests.golden.golden import PROFILES, check_cells


@pytest.mark.parametrize("profile", PROFILES)
def test_every_experiment_of_a_profile_asks_for_its_cells(profile):
    check_cells(profile)
