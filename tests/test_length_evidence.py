"""The evidence of lengths: the discriminant by other means, and what it is for."""

import json

import numpy as np
import pytest
import torch

from plc_core.analysis.statistics import auroc
from plc_core.objective import PairLogps, Router, build_objective
from plc_core.objective.length_evidence import LengthEvidence

ORDERS = ("score-first", "update-first")


def batch(count=4000, reversed_share=0.4, seed=0):
    """Margins and lengths that each know a little of the label, and the labels."""
    rng = np.random.default_rng(seed)
    sign = np.where(rng.random(count) < reversed_share, -1, 1)
    margin = torch.tensor(0.1 * sign * rng.normal(0.4, 1, count))
    root = sign * rng.normal(0.5, 1, count) * 6
    difference = np.sign(root) * np.round(root**2)
    lengths = np.stack([200 + np.maximum(difference, 0), 200 - np.minimum(difference, 0)], 1)
    return margin, torch.tensor(lengths), sign < 0


def learnt(margin, lengths, sigma_min=1e-9):
    evidence = LengthEvidence(0.0, sigma_min)
    evidence.observe(margin, lengths)
    evidence.commit()
    return evidence


def test_it_is_the_discriminant_in_the_margins_size():
    margin, lengths, _ = batch()
    found = learnt(margin, lengths)(margin, lengths).numpy()
    d = (lengths[:, 0] - lengths[:, 1]).numpy()
    x = np.stack([margin.numpy(), np.sign(d) * np.sqrt(np.abs(d))], 1)
    x = x / np.sqrt((x**2).mean(0))
    moments = x.T @ x / len(x)
    c = moments[0, 1]
    direction = np.linalg.solve(moments + 1e-3 * np.eye(2), x.mean(0))
    # The length's coefficient in least squares of 1 on x has this standard error.
    error = 1 / np.sqrt(len(x) * (1 - c**2))
    trust = 1 - (error / (direction[1] * ((1 + 1e-3) ** 2 - c**2) / (1 - c**2))) ** 2
    assert 0.9 < trust < 1
    told = x @ direction
    expected = (1 - trust) * x[:, 0] + trust * told / np.sqrt((told**2).mean())
    size = np.sqrt((margin.numpy() ** 2).mean())
    np.testing.assert_allclose(found, expected * size / np.sqrt((expected**2).mean()), rtol=1e-9)


def test_a_pair_weighs_by_its_age_and_the_squared_weights_say_how_many_pairs_that_is():
    margin, lengths, _ = batch(30)
    evidence = LengthEvidence(0.9)
    for step in (slice(0, 10), slice(10, 20), slice(20, 30)):
        evidence.observe(margin[step], lengths[step])
        evidence.commit()
    weights = np.repeat(0.1 * np.array([0.9**2, 0.9, 1]) / 10, 10)
    average = evidence.state_dict()
    assert average[0] == pytest.approx((weights * margin.numpy()).sum())
    assert average[5:] == pytest.approx([weights.sum(), (weights**2).sum()])


def test_lengths_that_say_nothing_leave_the_margin_alone():
    """Of many draws of lengths without a word on the label, most change little, none much."""
    margin, _, reversed_ = batch(2000, reversed_share=0.4)
    lost = []
    for seed in range(40):
        lengths = torch.tensor(np.random.default_rng(seed).integers(50, 400, (2000, 2)))
        score = learnt(margin[:1000], lengths[:1000])(margin[1000:], lengths[1000:])
        areas = [auroc(-x.numpy(), reversed_[1000:]).value for x in (margin[1000:], score)]
        lost.append(areas[0] - areas[1])
    assert np.mean(np.array(lost) == 0) > 0.5  # within a standard error of nothing
    assert np.mean(lost) < 0.005


def test_it_ranks_reversed_labels_better_than_either_without_a_clean_one():
    margin, lengths, reversed_ = batch()
    found = learnt(margin, lengths)
    margin, lengths, reversed_ = batch(seed=1)
    areas = [
        auroc(-score.numpy(), reversed_).value
        for score in (margin, lengths[:, 0] - lengths[:, 1], found(margin, lengths))
    ]
    assert areas[2] > max(areas[:2]) + 0.03


def test_before_any_step_it_is_the_margin_and_so_where_lengths_are_all_alike():
    margin, lengths, _ = batch(8)
    torch.testing.assert_close(LengthEvidence(0.9)(margin, lengths), margin)
    alike = torch.full((8, 2), 30.0)
    for shift in (0.1, -0.1):  # also where most margins are negative: a higher one is no reversal
        torch.testing.assert_close(learnt(margin + shift, alike)(margin, alike), margin)


def test_margins_below_the_floor_are_no_direction():
    """The rounding noise of a first step, whatever it is, leaves the next step's evidence."""
    margin, lengths, _ = batch(400, reversed_share=0.1)
    noise = 1e-7 * torch.tensor(np.random.default_rng(0).normal(0, 1, (2, 400)))
    one, other = (learnt(n, lengths, sigma_min=1e-3)(margin, lengths) for n in noise)
    torch.testing.assert_close(one, other, rtol=0, atol=1e-6)


def test_both_options_read_the_margin_per_hundred_tokens():
    margin, lengths, _ = batch(400, reversed_share=0.1)
    router = Router(length_evidence=True, length_normalised=True, calibration_order="score-first")
    router(margin, 0.5, lengths=lengths)
    expected = LengthEvidence(router.recipe.alpha)
    expected.observe(100 * margin / lengths.sum(1), lengths)
    expected.commit()
    assert router.state_dict()["length_evidence"] == expected.state_dict()
    other = 100 * margin / lengths.sum(1)
    torch.testing.assert_close(router.evidence(margin, lengths), expected(other, lengths))


@pytest.mark.parametrize("order", ORDERS)
def test_a_split_step_is_the_whole_one_and_a_resumed_run_the_first(order):
    margin, lengths, _ = batch(60, reversed_share=0.0)
    routers = [Router(length_evidence=True, calibration_order=order) for _ in range(3)]
    for step in range(5):
        m, n = margin[12 * step : 12 * step + 12], lengths[12 * step : 12 * step + 12]
        whole = routers[0](m, 0.5, lengths=n)
        if step < 4:
            parts = [
                routers[1](m[i : i + 4], 0.5, (i // 4, 3), lengths=n[i : i + 4]) for i in (0, 4, 8)
            ]
            if order == "score-first":
                torch.testing.assert_close(torch.cat([p.z for p in parts]), whole.z)
            assert routers[1].state_dict()["length_evidence"] == pytest.approx(
                routers[0].state_dict()["length_evidence"]
            )
        if step == 3:
            routers[2].load_state_dict(json.loads(json.dumps(routers[0].state_dict())))
    assert torch.equal(routers[2](m, 0.5, lengths=n).z, whole.z)


def test_evaluation_moves_nothing_and_the_loss_keeps_its_margin():
    margin, lengths, _ = batch(32, reversed_share=0.0)
    plc = build_objective("plc", beta=0.5, length_evidence=True)
    zero = torch.zeros(32, dtype=torch.float64)
    logps = PairLogps(margin, zero, zero, zero, *lengths.unbind(1))
    plc(logps, progress=0.5)
    before = plc.state_dict()
    out = plc(logps, progress=0.5, update=False)
    assert plc.state_dict() == before
    torch.testing.assert_close(out.margin, 0.5 * margin)
    plain = build_objective("plc", beta=0.5)
    plain(logps, progress=0.5)
    assert not torch.allclose(out.routing.z, plain(logps, progress=0.5, update=False).routing.z)


def test_what_is_no_state_is_a_sentence():
    state = Router().state_dict()
    with pytest.raises(ValueError, match="no state of the evidence of lengths: None"):
        Router(length_evidence=True).load_state_dict(state)
    with pytest.raises(ValueError, match="this one is without"):
        Router().load_state_dict(Router(length_evidence=True).state_dict())
    with pytest.raises(ValueError, match="no state of the evidence of lengths"):
        LengthEvidence(0.9).load_state_dict([0.0, 0.0, -1.0, 0.0, 0.0, 1.0, 0.0])
    for lengths in (None, torch.ones(2)):  # one number a pair is not enough
        with pytest.raises(ValueError, match="needs the lengths of both responses"):
            Router(length_evidence=True)(torch.ones(2), 0.5, lengths=lengths)
