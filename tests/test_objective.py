"""The objective against the published formulas, in float64."""

import json
import math
from dataclasses import replace

import pytest
import torch

from plc_core.objective import (
    RECIPES,
    MarginCalibration,
    PairLogps,
    Recipe,
    Router,
    build_objective,
)
from plc_core.objective.recipes import correction_strength
from tests.margins import close, f64, of_margin
from tests.paths import reference_vectors, shared_file

EDGE = {"alpha": 0.98, "tau_dir": 0.55, "tau_tie": 1.15, "kappa": 0.8, "sigma_min": 1e-3}
"""What the edge entry of the vectors, whose margins are all 0, leaves open."""


@pytest.mark.parametrize(
    "case",
    [
        "plc_dpo_uniform_prior",
        "plc_dpo_prior_080101",
        "plc_dpo_recommended_prior_080_008_012",
        "plc_dpo_prior_075_010_015",
        "plc_dpo_edge_all_zero",
    ],
)
def test_plc_gives_the_reference_numbers(case):
    inputs, expected = EDGE | reference_vectors()[case]["inputs"], reference_vectors()[case]["out"]
    recipe = Recipe(
        inputs["alpha"], inputs["tau_dir"], inputs["tau_tie"], 0.0, inputs["gamma_t"],
        inputs["kappa"],
    )  # fmt: skip
    plc = build_objective(
        "plc",
        beta=1.0,
        recipe=recipe,
        prior=_exact(inputs["prior"]),
        schedule="constant",
        sigma_min=inputs["sigma_min"],
        initial=(inputs["mu"], inputs["v"]),
    )
    logps = of_margin(inputs["m"])
    out = plc(logps, progress=0.5)
    mean, deviation = plc.router.calibration.statistics()
    close(mean, expected["mu_new"])
    close(deviation.clamp(min=inputs["sigma_min"]), expected["sigma_used"])
    for found, name in zip(out.routing, ("z", "q_clean", "q_flip", "q_tie", "C", "w"), strict=True):
        close(found, expected[name])
    close(out.loss, expected["L"])
    out.loss.sum().backward()
    close(logps.policy_chosen.grad, expected["dL_dm"])


def test_update_first_under_accumulation_scores_with_the_margins_seen_so_far():
    m = f64([1.0, -1.0, 3.0, 0.5])
    router = Router(calibration_order="update-first", initial=(0.2, 0.7))
    for index in (0, 1):
        z = router(m[2 * index : 2 * index + 2], 0.5, micro_batch=(index, 2)).z
        seen = m[: 2 * index + 2]
        mean = 0.98 * 0.2 + 0.02 * seen.mean()
        variance = 0.98 * 0.7 + 0.02 * seen.var(correction=0)
        close(z, (m[2 * index : 2 * index + 2] - mean) / variance.sqrt())
    close(router.calibration.statistics()[0], 0.98 * 0.2 + 0.02 * m.mean())


def _exact(prior):
    # The file prints ten digits; a third is a third.
    return tuple(1 / 3 if abs(p - 1 / 3) < 1e-9 else p for p in prior)


def test_the_gradient_is_the_closed_form_also_at_zero():
    m = f64([-3.0, -0.2, 0.0, 0.4, 5.0])
    logps = of_margin(m)
    out = build_objective("plc", beta=1.0, schedule="constant")(logps, progress=0.9)
    out.loss.sum().backward()
    q = out.routing
    step = torch.heaviside(m, f64(0.5))
    expected = -torch.sigmoid(-m) + q.weight * (q.flip + q.tie * step)
    torch.testing.assert_close(logps.policy_chosen.grad, expected, atol=1e-12, rtol=0)
    assert q.weight[0] > 0.5


def test_a_prior_on_clean_alone_is_dpo():
    m = f64([-1.0, 0.0, 2.0])
    plc = build_objective("plc", beta=1.0, prior=(1.0, 0.0, 0.0), schedule="constant")
    out = plc(of_margin(m), progress=1.0)
    torch.testing.assert_close(out.loss, build_objective("dpo", beta=1.0)(of_margin(m), 1.0).loss)
    assert torch.equal(out.routing.clean, torch.ones_like(m))


def test_the_recipes_are_the_papers():
    # Table "PLC-DPO hyperparameter recipes": alpha, tau_dir, tau_tie, rho_warm, gamma_max, kappa
    assert {
        "conservative": Recipe(0.995, 1.00, 0.85, 0.15, 0.50, 1.5),
        "balanced": Recipe(0.99, 0.75, 1.00, 0.10, 0.70, 1.0),
        "aggressive": Recipe(0.98, 0.55, 1.15, 0.07, 0.85, 0.8),
    } == RECIPES


@pytest.mark.parametrize("name", RECIPES)
def test_plc_is_dpo_while_gamma_is_zero(name):
    m = torch.linspace(-4, 4, 9, dtype=torch.float64)
    plc, dpo = of_margin(m), of_margin(m)
    out = build_objective("plc", beta=0.1, recipe=name)(plc, progress=RECIPES[name].warmup / 2)
    reference = build_objective("dpo", beta=0.1)(dpo, progress=0.0)
    assert torch.equal(out.loss, reference.loss)
    out.loss.sum().backward()
    reference.loss.sum().backward()
    assert torch.equal(plc.policy_chosen.grad, dpo.policy_chosen.grad)
    assert torch.equal(out.routing.weight, torch.zeros_like(m))


def test_gamma_rises_linearly_from_the_end_of_warm_up_to_the_end():
    recipe = RECIPES["aggressive"]
    assert correction_strength(0.0699, recipe) == 0
    assert correction_strength(0.07, recipe) == 0
    assert correction_strength(0.535, recipe) == pytest.approx(0.85 / 2)
    assert correction_strength(1.0, recipe) == pytest.approx(0.85)
    # Along a cosine it reaches a quarter of the way later; a constant is there from the start.
    third = 0.07 + 0.93 / 3
    assert correction_strength(third, recipe, "cosine") == pytest.approx(0.85 / 4)
    assert correction_strength(0.07, recipe, "constant") == 0.85
    assert correction_strength(0.0699, recipe, "constant") == 0
    # Share of the correction that falls into the first 20 % of training: 1.9 % in the paper.
    steps = [correction_strength(t / 1000, recipe) for t in range(1000)]
    assert sum(steps[:200]) / sum(steps) == pytest.approx(0.0194, abs=2e-4)


def test_routing_does_not_depend_on_the_margins_scale():
    m = f64([0.8, -0.4, 0.05, 1.7, -2.1, 0.3])
    small = Router(initial=(0.1, 0.5))(m, 0.5)
    large = Router(initial=(0.1 * 50, 0.5 * 2500))(m * 50, 0.5)
    for a, b in zip(small, large, strict=True):
        torch.testing.assert_close(a, b, atol=1e-12, rtol=1e-12)


def test_the_first_steps_statistics_are_the_first_batchs():
    calibration = MarginCalibration(alpha=0.98)
    calibration.observe(f64([1.0, 2.0, 6.0]))
    calibration.commit()
    mean, deviation = calibration.statistics()
    assert mean.item() == pytest.approx(3.0)
    assert deviation.item() == pytest.approx(math.sqrt(14 / 3))


@pytest.mark.parametrize("options", [{}, {"length_evidence": True}])
def test_pairs_of_the_same_tokens_move_no_statistics(options):
    margin, lengths = f64([0.5, 0.0, -0.2, 0.0, 0.9]), f64([[3, 9], [5, 5], [8, 2], [7, 7], [4, 6]])
    distinct = torch.tensor([True, False, True, False, True])
    alone, beside = Router(**options), Router(**options)
    for _ in range(3):
        expected = alone(margin[distinct], 0.5, lengths=lengths[distinct])
        found = beside(margin, 0.5, lengths=lengths, distinct=distinct)
        torch.testing.assert_close(found.z[distinct], expected.z)
    close(beside.calibration.statistics()[0], alone.calibration.statistics()[0])
    before = beside.state_dict()
    beside(margin[:2], 0.5, lengths=lengths[:2], distinct=torch.tensor([False, False]))
    assert beside.state_dict()["calibration"] == before["calibration"]


def test_without_centring_the_evidence_turns_at_a_margin_of_zero():
    m = torch.tensor([0.2, 1.0, 1.8], dtype=torch.float64)
    centred, plain = (Router(centre=c)(m, progress=0.5) for c in (True, False))
    deviation = m.std(correction=0)
    torch.testing.assert_close(centred.z, (m - 1.0) / deviation)
    torch.testing.assert_close(plain.z, m / deviation)
    assert centred.flip[0] > centred.clean[0]  # preferred as labelled, but less than the others
    assert plain.flip[0] < plain.clean[0]


def test_length_normalised_routing_reads_the_margin_per_hundred_tokens():
    m, lengths = f64([1.0, 1.0, -2.0]), torch.tensor([[4, 6], [1, 99], [200, 200]])
    by_length = Router(length_normalised=True)(m, progress=0.5, lengths=lengths)
    expected = Router()(100 * m / lengths.sum(1), progress=0.5)
    torch.testing.assert_close(by_length, expected)
    with pytest.raises(ValueError, match="needs the lengths of both responses"):
        Router(length_normalised=True)(m, progress=0.5)


def test_length_normalised_routing_leaves_the_losses_own_margin():
    one = torch.ones(4, dtype=torch.float64)
    logps = PairLogps(f64([-1, -2, -3, -4]), f64([-2, -2, -1, -9]), -3 * one, -3 * one,
                      torch.tensor([1, 5, 9, 20]), torch.tensor([2, 5, 7, 30]))  # fmt: skip
    plain, normalised = (
        build_objective("plc", beta=0.5, length_normalised=x)(logps, progress=0.01)
        for x in (False, True)
    )  # during warm-up, where the loss is DPO's
    torch.testing.assert_close(plain.loss, normalised.loss)
    torch.testing.assert_close(plain.margin, normalised.margin)
    assert not torch.equal(plain.routing.z, normalised.routing.z)


def test_before_any_commit_there_is_no_evidence():
    routing = Router(calibration_order="score-first")(f64([5.0, -5.0]), 0.5)
    assert routing.z.tolist() == [0, 0]
    torch.testing.assert_close(routing.clean, f64([0.8, 0.8]))


def test_equal_margins_are_no_evidence_and_no_nan():
    out = build_objective("plc", beta=1.0)(of_margin([0.0] * 4), progress=0.9)
    assert out.routing.z.tolist() == [0.0] * 4
    torch.testing.assert_close(out.loss, f64([math.log(2)] * 4))
    rounded = Router()(f64([0.1] * 3), progress=0.9)  # whose computed variance is below 0
    torch.testing.assert_close(rounded.z, f64([0.0] * 3), atol=1e-9, rtol=0)
    one = build_objective("plc", beta=1.0)(of_margin([3.0]), progress=0.9)
    assert one.routing.z.tolist() == [0.0]
    assert one.loss.isfinite().all()


@pytest.mark.parametrize("sizes", [(8,), (2, 2, 2, 2), (1,) * 8, (3, 5)])
def test_score_first_does_not_depend_on_how_a_step_is_split(sizes):
    steps = torch.randn(5, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def run(sizes):
        router = Router(calibration_order="score-first")
        routed = []
        for number, step in enumerate(steps):
            parts = step.split(list(sizes))
            for index, part in enumerate(parts):
                routed.append(router(part, number / 5, micro_batch=(index, len(parts))))
        return torch.cat([torch.stack(r) for r in routed], 1), router.calibration.statistics()

    (whole, whole_state), (split, split_state) = run((8,)), run(sizes)
    torch.testing.assert_close(split, whole, atol=1e-13, rtol=1e-12)
    torch.testing.assert_close(split_state, whole_state, atol=1e-14, rtol=1e-13)


def test_auto_scores_a_whole_step_first_and_its_parts_later():
    m = f64([1.0, -1.0, 3.0, 0.5])
    whole = Router()(m, 0.5)
    torch.testing.assert_close(whole.z, Router(calibration_order="update-first")(m, 0.5).z)
    parts = Router()(m[:2], 0.5, micro_batch=(0, 2))
    torch.testing.assert_close(
        parts.z, Router(calibration_order="score-first")(m[:2], 0.5, micro_batch=(0, 2)).z
    )


@pytest.mark.parametrize("call", [{"progress": 1.1}, {"progress": math.nan}, {"progress": None},
                                  {"progress": 0.5, "micro_batch": (2, 2)}])  # fmt: skip
@pytest.mark.parametrize("name", ["dpo", "plc"])
def test_a_place_in_training_that_cannot_be_is_a_sentence(name, call):
    with pytest.raises(ValueError, match=r"progress|micro_batch"):
        build_objective(name, beta=1.0)(of_margin([1.0, 2.0]), **call)


def test_a_step_without_pairs_moves_nothing():
    for name in ("plc", "re-po"):
        objective = build_objective(name, beta=1.0)
        objective(of_margin([1.0, 2.0]), progress=0.1)
        before = objective.state_dict()
        assert objective(of_margin([]), progress=0.2).loss.shape == (0,)
        assert objective.state_dict() == before


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"name": "dpoo"}, "Unknown objective 'dpoo'; known are dpo, cdpo"),
        ({"recipe": "bold"}, "Unknown recipe 'bold'"),
        ({"prior": (0.8, 0.1, 0.2)}, "must sum to 1"),
        ({"prior": (1.1, -0.1, 0.0)}, "three weights in"),
        ({"beta": 0.0}, "beta must be positive"),
        ({"beta": math.nan}, "beta must be a finite number; it is nan"),
        ({"beta": "0.1"}, "beta must be a finite number; it is '0.1'"),
        ({"beta": True}, "beta must be a finite number; it is True"),
        ({"prior": None}, "three weights in"),
        ({"prior": ("a", 0, 1)}, "a prior weight must be a finite number"),
        ({"initial": (0, 1, 2)}, "initial is a mean and a variance"),
        ({"initial": (math.nan, 1)}, "the initial mean must be a finite number"),
        ({"sigma_min": math.inf}, "sigma_min must be a finite number"),
        ({"centre": 0}, "centre must be true or false"),
        ({"length_normalised": 1}, "length_normalised must be true or false"),
        ({"length_evidence": 1}, "length_evidence must be true or false"),
        ({"warmup": "0.1"}, "warmup must be a finite number"),
        ({"gate": "no"}, "gate must be true or false"),
        ({"correct": "False"}, "correct must be true or false"),
        ({"states": None}, "include clean"),
        ({"recipe": None}, "a name or a Recipe"),
        ({"schedule": "quadratic"}, "Unknown schedule"),
        ({"calibration_order": "first"}, "Unknown calibration_order"),
        ({"states": ("flip",)}, "include clean"),
        ({"label_smoothing": 0.1}, "would ignore 'label_smoothing'.*cdpo"),
        ({"name": "dpo", "recipe": "balanced"}, "would ignore 'recipe': it has none but beta"),
    ],
)
def test_what_cannot_be_meant_is_a_sentence(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        build_objective(**{"name": "plc", "beta": 0.1} | options)


def test_the_committed_vectors_are_the_specifications():
    assert json.loads(shared_file("spec/vectors.json").read_text()) == reference_vectors()


def test_each_number_of_a_recipe_can_be_replaced_alone():
    """As the paper's one-dimensional sweeps do; the EMA's decay is the replaced one too."""
    names = {"alpha": 0.9, "tau_dir": 0.35, "tau_tie": 1.5, "warmup": 0.3, "gamma_max": 0.25,
             "kappa": 2.0}  # fmt: skip
    for name, value in names.items():
        router = build_objective("plc", beta=0.1, **{name: value}).router
        assert router.recipe == replace(RECIPES["aggressive"], **{name: value})
    assert build_objective("plc", beta=0.1, alpha=0.9).router.calibration.alpha == 0.9
    with pytest.raises(ValueError, match="tau_dir"):
        build_objective("plc", beta=0.1, tau_dir=0)


# ---- what is known of a pair before training ----------------------------------------------------


def test_the_same_prior_for_all_pairs_is_the_paper():
    """pi^0_i = (1 - t)(1 - f), (1 - t) f, t with f = flip / (clean + flip) is pi^0 itself."""
    clean, flip, tie = (0.80, 0.08, 0.12)
    m = torch.linspace(-3, 3, 13, dtype=torch.float64)
    same = torch.full_like(m, flip / (clean + flip))
    plain, own = (build_objective("plc", beta=1.0, warmup=0.0) for _ in range(2))
    a = plain(of_margin(m), progress=0.5)
    b = own(of_margin(m, p_flip=same, p_tie=torch.full_like(m, tie)), progress=0.5)
    torch.testing.assert_close(b.loss, a.loss, rtol=1e-14, atol=1e-15)
    for one, other in zip(a.routing, b.routing, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-14, atol=1e-15)
    unknown = torch.full_like(m, torch.nan)
    c = build_objective("plc", beta=1.0, warmup=0.0)(
        of_margin(m, 1.0, unknown, unknown), progress=0.5
    )
    torch.testing.assert_close(c.loss, a.loss, rtol=1e-14, atol=1e-15)


def test_a_pair_is_routed_by_its_own_prior():
    """z = 0 for all, so that the energies are the priors: q = (1 - t)(1 - f), (1 - t) f, t."""
    f, t = torch.tensor([0.0, 0.5, 1.0]), torch.tensor([0.0, 0.2, 0.0])
    router = Router("balanced", initial=(0.0, 1.0))
    routing = router(torch.zeros(3), 0.5, update=False, told=(f, t))
    expected = torch.tensor([[1.0, 0.0, 0.0], [0.4, 0.4, 0.2], [0.0, 1.0, 0.0]]).double()
    found = torch.stack((routing.clean, routing.flip, routing.tie), 1)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-7)
    without = Router("balanced", states=("clean", "tie"), initial=(0.0, 1.0))
    assert (without(torch.zeros(3), 0.5, update=False, told=(f, t)).flip == 0).all()


def test_objectives_with_a_noise_rate_take_one_a_pair():
    m, rates = torch.tensor([0.7, -0.2, 1.5]).double(), [0.1, 0.3, float("nan")]
    for name, option in (("cdpo", "epsilon"), ("rdpo-robust", "epsilon"), ("re-po", "eta")):
        own = build_objective(name, beta=1.0)(
            of_margin(m, 1.0, torch.tensor(rates)), progress=0.5
        ).loss
        for place, rate in enumerate(rates):
            given = {option: 1 - rate if option == "eta" else rate} if rate == rate else {}
            one = build_objective(name, beta=1.0, **given)(of_margin(m), progress=0.5).loss
            torch.testing.assert_close(own[place], one[place], rtol=1e-6, atol=1e-8)


def test_a_label_that_says_nothing_leaves_the_robust_loss_finite():
    loss = build_objective("rdpo-robust", beta=1.0)(
        of_margin([1.0], p_flip=torch.tensor([0.9])), progress=0.5
    ).loss
    assert loss.isfinite().all()
