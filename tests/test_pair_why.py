"""Why a pair was routed as it was, in a sentence beside its numbers."""

import math

import pytest
from pair_view import why

WEIGHTS = {"q_clean": 0.1, "q_flip": 0.8, "q_tie": 0.1}


def test_the_sentence_names_the_side_the_distance_and_the_largest_weight() -> None:
    assert why({"z": -2.567, "margin": -1.9} | WEIGHTS) == (
        "The policy moved towards the rejected answer, 2.57 deviations below the average: the "
        "label looks reversed."
    )
    clean = {"z": 1.0, "margin": 0.2, "q_clean": 0.7, "q_flip": 0.1, "q_tie": 0.2}
    assert "towards the chosen answer, 1.00 deviations above" in why(clean)
    assert why(clean).endswith("the label looks right.")


@pytest.mark.parametrize("missing", [{}, {"z": math.nan, "margin": 1.0}, {"z": 1.0}])
def test_a_pair_that_was_not_visited_has_no_reason(missing: dict[str, float]) -> None:
    assert why(missing) == ""
