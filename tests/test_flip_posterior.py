"""The flip posterior: its formula, what it finds in data of known noise, its state."""

import json
import math

import numpy as np
import pytest
import torch

from plc_core.objective import FlipPosterior


def margins_of(rate, steps=24, pairs=64, seed=0, scale=1.0):
    """Margins whose labels agree with them by a logistic link, then `rate` of them reversed."""
    rng = np.random.default_rng(seed)
    gap = rng.normal(0, 1.5, (steps, pairs))
    right = rng.random((steps, pairs)) < 1 / (1 + np.exp(-2 * gap))
    flipped = rng.random((steps, pairs)) < rate
    signed = np.where(right ^ flipped, gap, -gap)
    return torch.tensor(signed * scale), torch.tensor(flipped)


def filled(rows, **options):
    posterior = FlipPosterior(**options)
    for row in rows:
        posterior.observe(row)
    return posterior


def test_it_is_the_formula_term_by_term():
    past, now = [0.3, -0.1, 0.2], [0.25, -0.4]
    rho = math.sqrt(sum(m * m for m in past) / 3)
    rates = [0.02 * i for i in range(25)]
    scales = [0.25 * (16 / 0.25) ** (i / 18) for i in range(19)]

    def sigma(x):
        return 1 / (1 + math.exp(-x))

    def parts(e, k, m):
        return (1 - e) * sigma(k * m / rho), e * sigma(-k * m / rho)

    weight = {(e, k): math.prod(sum(parts(e, k, m)) for m in past) for e in rates for k in scales}
    total = sum(weight.values())
    expected = [
        sum(w / total * parts(e, k, m)[1] / sum(parts(e, k, m)) for (e, k), w in weight.items())
        for m in now
    ]
    posterior = filled([torch.tensor(past[:2]), torch.tensor(past[2:])], steps=2, pairs=3)
    assert posterior(torch.tensor(now)).tolist() == pytest.approx(expected, rel=1e-6)
    rate = sum(e * w for (e, _), w in weight.items()) / total
    assert float(posterior.estimate().rate) == pytest.approx(rate, rel=1e-6)


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.2, 0.4])
def test_it_finds_the_noise_rate_of_logistic_margins(rate):
    for seed in range(3):
        estimate = filled(margins_of(rate, pairs=512, seed=seed)[0]).estimate()
        assert float(estimate.low) <= rate <= float(estimate.high)
        assert float(estimate.rate) == pytest.approx(rate, abs=0.08)


def test_its_probabilities_mean_what_they_say():
    seen, _ = margins_of(0.2)
    new, flipped = margins_of(0.2, steps=400, seed=9)
    chance = filled(seen)(new.flatten()).numpy()
    place = (chance * 10).astype(int).clip(max=9)
    truth = flipped.flatten().numpy()
    gaps = [
        abs(chance[place == i].mean() - truth[place == i].mean()) * (place == i).mean()
        for i in range(10)
        if (place == i).any()
    ]
    assert sum(gaps) < 0.05


def test_the_scale_of_the_margins_does_not_matter():
    plain, scaled = (filled(margins_of(0.2, scale=s)[0]) for s in (1.0, 1e-4))
    m = torch.tensor([-1.0, 0.0, 0.5])
    torch.testing.assert_close(plain(m), scaled(1e-4 * m))


def is_silent(posterior):
    numbers = [*posterior(torch.tensor([5.0, 0.0, -5.0])), *posterior.estimate()]
    return all(bool(number.isnan()) for number in numbers)


@pytest.mark.parametrize(
    "past",
    [
        [],
        [torch.zeros(512)] * 30,
        margins_of(0.2, steps=1, pairs=4096)[0],
        margins_of(0.2, steps=23)[0],
        margins_of(0.2, steps=30, pairs=2)[0],
    ],
    ids=["nothing", "margins of 0", "one large step", "too few steps", "too few pairs"],
)
def test_nothing_is_said_without_evidence(past):
    assert is_silent(filled(past))


@pytest.mark.parametrize("growth", [1.12, 1 / 1.12], ids=["growing", "shrinking"])
def test_nothing_is_said_while_the_spread_of_the_margins_changes(growth):
    """As in the first steps of a run: no scale fits margins that differ by an order of size."""
    rows, _ = margins_of(0.2, steps=48)
    posterior = filled(row * growth**step for step, row in enumerate(rows[:24]))
    assert is_silent(posterior)
    for row in rows[24:]:  # and once it has settled, it is as if the start had not been
        posterior.observe(row * growth**24)
    torch.testing.assert_close(posterior(rows[0] * growth**24), filled(rows[24:])(rows[0]))


def test_nothing_is_said_of_a_run_that_does_not_move():
    """The margins before the first update are numerical noise; so are these, of the same size."""
    rows, _ = margins_of(0.2, steps=25, scale=1e-7)
    posterior = FlipPosterior()
    posterior.observe(rows[0], before_any_update=True)
    for row in rows[1:]:
        posterior.observe(row)
    assert is_silent(posterior)
    restored = FlipPosterior()
    restored.load_state_dict(json.loads(json.dumps(posterior.state_dict())))
    assert is_silent(restored)
    assert not is_silent(filled(rows[1:]))


def test_small_batches_are_remembered_for_more_steps():
    rows, _ = margins_of(0.2, steps=64, pairs=8)
    assert is_silent(filled(rows[:31]))
    assert torch.equal(filled(rows)(rows[0]), filled(rows[32:])(rows[0]))


def test_a_margin_far_outside_those_seen_stays_a_probability():
    posterior = filled([torch.tensor([1e-9, -1e-9])] * 2, steps=2, pairs=4)
    assert posterior(torch.tensor([1e3, -1e3])).isfinite().all()


def test_only_the_last_steps_count():
    rows, _ = margins_of(0.2, steps=30)
    assert torch.equal(filled(rows)(rows[0]), filled(rows[6:])(rows[0]))


def test_its_state_goes_through_json_bit_for_bit():
    rows, _ = margins_of(0.2)
    whole, restored = filled(rows), FlipPosterior()
    restored.load_state_dict(json.loads(json.dumps(whole.state_dict())))
    assert torch.equal(whole(rows[0]), restored(rows[0]))
    for posterior in (whole, restored):
        posterior.observe(rows[1])
    assert torch.equal(whole(rows[0]), restored(rows[0]))


def test_a_margin_that_is_none_says_nothing_and_survives_saving():
    rows, _ = margins_of(0.2)
    nothing = torch.tensor([math.nan, math.nan], dtype=torch.float64)
    alone, beside, restored = filled(rows), filled([]), FlipPosterior()
    for row in rows:
        beside.observe(torch.cat((nothing, row)))
    torch.testing.assert_close(beside(rows[0]), alone(rows[0]))
    torch.testing.assert_close(torch.stack(beside.estimate()), torch.stack(alone.estimate()))
    restored.load_state_dict(json.loads(json.dumps(beside.state_dict())))
    assert torch.equal(beside(rows[0]), restored(rows[0]))
    assert is_silent(filled([nothing] * 200))


@pytest.mark.parametrize(
    "state", [{}, {"margins": 3}, {"margins": [["a"]]}, {"margins": [[math.nan]]}], ids=str
)
def test_another_state_is_refused(state):
    with pytest.raises(ValueError, match="no state of a flip posterior"):
        FlipPosterior().load_state_dict(state)
