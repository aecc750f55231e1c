"""The cells of every other profile keep their names, too."""

import pytest

from tests.golden.golden import PROFILES, check_cells


@pytest.mark.parametrize("profile", [name for name in PROFILES if name != "embedded"])
def test_every_experiment_of_a_profile_asks_for_its_cells(profile):
    check_cells(profile)
