"""Every objective against the reference numbers, its own limits, and what no input may break."""

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from plc_core.objective import OBJECTIVES, NonFiniteError, PairLogps, build_objective
from plc_core.objective.gamma_po import dynamic_targets
from plc_core.objective.state_losses import tie_loss
from tests.margins import close, f64, of_margin
from tests.paths import reference_vectors


@pytest.fixture(scope="module")
def vectors():
    return reference_vectors()


@pytest.fixture
def batch(vectors):
    common = vectors["common_batch"]
    names = ("logp_pi_w", "logp_pi_l", "logp_ref_w", "logp_ref_l", "len_w", "len_l")
    logps = PairLogps(*(f64(common[name]) for name in names))
    for policy in logps[:2]:
        policy.requires_grad_()
    return logps


def gradient(name, m, **options):
    """dL/dm of each pair of a batch, with beta 1."""
    logps = of_margin(m)
    build_objective(name, beta=1.0, **options)(logps, progress=0.5).loss.sum().backward()
    return logps.policy_chosen.grad


def losses(name, m, **options):
    return build_objective(name, beta=1.0, **options)(of_margin(m), progress=0.5).loss


# Entries of the vectors with losses and dL/dm a pair: entry, objective, options.
PAIRWISE = [
    ("dpo", "dpo", {}),
    ("cdpo_eps0.1", "cdpo", {"epsilon": 0.1}),
    ("cdpo_eps0.2", "cdpo", {"epsilon": 0.2}),
    ("rdpo_robust_eps0.1", "rdpo-robust", {"epsilon": 0.1}),
    ("rdpo_robust_eps0.2", "rdpo-robust", {"epsilon": 0.2}),
    ("rdpo_length_alpha0.005", "rdpo-length", {"alpha": 0.005}),
    ("rdpo_length_alpha0.05", "rdpo-length", {"alpha": 0.05}),
    ("rso_hinge", "rso", {}),
    ("ropo_alpha14", "ropo", {"alpha": 14.0}),
    ("ropo_alpha6", "ropo", {"alpha": 6.0}),
    ("ropo_alpha30", "ropo", {"alpha": 30.0}),
]


@pytest.mark.parametrize(("entry", "name", "options"), PAIRWISE)
def test_losses_and_gradients_of_one_pair(vectors, batch, entry, name, options):
    out = build_objective(name, beta=0.1, **options)(batch, progress=0.0)
    close(out.loss, vectors[entry]["per_pair_loss"])
    close(out.loss.mean(), vectors[entry]["reduced"])
    close(out.margin, vectors["common_batch"]["m"])
    assert out.routing is None
    out.loss.sum().backward()
    close(batch.policy_chosen.grad / 0.1, vectors[entry]["dloss_dm"])
    close(batch.policy_rejected.grad / -0.1, vectors[entry]["dloss_dm"])


def test_ipo_averages_over_tokens(vectors, batch):
    expected = vectors["ipo_avg_tau0.1_TRL"]
    out = build_objective("ipo", beta=0.1, tau=0.1)(batch, progress=0.0)
    close(out.loss, expected["per_pair_loss"])
    out.loss.sum().backward()
    close(batch.policy_chosen.grad * batch.chosen_lengths, expected["dloss_dm"])


def test_simpo(vectors, batch):
    expected = vectors["simpo_beta2_gamma1"]
    out = build_objective("simpo", beta=2.0, gamma=1.0)(batch, progress=0.0)
    close(out.loss, expected["per_pair_loss"])
    out.loss.sum().backward()
    close(batch.policy_chosen.grad * batch.chosen_lengths / 2.0, expected["dloss_dm"])


@pytest.mark.parametrize("beta_prime", [1.0, 0.5])
def test_dr_dpo_shares_its_batch_loss_out(vectors, batch, beta_prime):
    expected = vectors[f"drdpo_betap{beta_prime}"]
    out = build_objective("dr-dpo", beta=0.1, beta_prime=beta_prime)(batch, progress=0.0)
    close(out.loss.mean(), expected["batch_loss"])
    out.loss.mean().backward()
    close(batch.policy_chosen.grad / 0.1, expected["dloss_dm"])


def test_kto_pair_with_a_detached_kl(vectors, batch):
    """The undetached gradient of the vectors is of an old trainer that let it leak through K."""
    expected = vectors["kto_pair"]
    out = build_objective("kto-pair", beta=0.1)(batch, progress=0.0)
    both = zip(expected["loss_chosen"], expected["loss_rejected"], strict=True)
    close(out.loss, [(c + r) / 2 for c, r in both])
    close(out.loss.mean(), expected["reduced_mean_2B"])
    out.loss.mean().backward()
    close(batch.policy_chosen.grad, expected["dloss_dlogratio_w_detachedKL"])
    close(batch.policy_rejected.grad, expected["dloss_dlogratio_l_detachedKL"])


def test_re_po_over_three_steps(vectors, batch):
    repo = build_objective("re-po", beta=0.1, eta=0.9, alpha=0.1)
    for step in vectors["repo_dpo"]["steps_same_batch"]:
        batch.policy_chosen.grad = None
        close(repo.eta, step["eta_before"])
        out = repo(batch, progress=0.0)
        close(out.loss, step["per_pair_loss"])
        out.loss.sum().backward()
        close(batch.policy_chosen.grad / 0.1, step["dloss_dm"])
        close(repo.eta, step["eta_after"])


@pytest.mark.parametrize(
    ("entry", "gamma_0", "tau"),
    [("gammaDPO_g0_0.5_tau1", 0.5, 1.0), ("gammaDPO_g0_0.025_tau1", 0.025, 1.0),
     ("gammaDPO_g0_0.5_tau10", 0.5, 10.0)],
)  # fmt: skip
def test_gamma_po_with_a_given_queue(vectors, batch, entry, gamma_0, tau):
    expected = vectors[entry]
    objective = build_objective("gamma-po", beta=0.1, gamma_0=gamma_0, tau=tau)
    objective.queue = f64(expected["hyper"]["queue"])
    out = objective(batch, progress=0.0)
    close(out.loss, expected["per_pair_loss"])
    out.loss.sum().backward()
    close(batch.policy_chosen.grad / 0.1, expected["dloss_dm"])
    close(objective.queue[-4:], vectors["common_batch"]["m"])
    pool = torch.cat((f64(vectors["common_batch"]["m"]), f64(expected["hyper"]["queue"])))
    close(dynamic_targets(pool, gamma_0, tau)[:4], expected["gamma_i"])


def test_ipo_of_token_sums_is_the_other_variant_of_the_vectors(vectors, batch):
    """`ipo_sum_tau0.1` is IPO with every length 1, a variant that is not offered by name."""
    expected, one = vectors["ipo_sum_tau0.1"], torch.ones(4, dtype=torch.float64)
    summed = batch._replace(chosen_lengths=one, rejected_lengths=one)
    out = build_objective("ipo", beta=0.1, tau=0.1)(summed, progress=0.0)
    close(out.loss, expected["per_pair_loss"])
    out.loss.sum().backward()
    close(batch.policy_chosen.grad, expected["dloss_dm"])


def test_gamma_targets_of_the_simpo_variant(vectors):
    """γ-SimPO is not offered by name; its targets are the same function of its own gaps."""
    expected = vectors["gammaSimPO_beta2.5_ratio0.15_tau10"]
    pool = f64(expected["reward_gap"] + expected["hyper"]["queue"])
    close(dynamic_targets(pool, 0.375, 10.0)[:4], expected["gamma_i"])


@pytest.mark.parametrize(
    ("entry", "name", "options"),
    [
        ("dpo", "dpo", {}),
        ("cdpo_0.1", "cdpo", {"epsilon": 0.1}),
        ("cdpo_0.2", "cdpo", {"epsilon": 0.2}),
        ("rdpo_robust_0.1", "rdpo-robust", {"epsilon": 0.1}),
        ("rdpo_robust_0.2", "rdpo-robust", {"epsilon": 0.2}),
        ("hinge", "rso", {}),
        ("ropo_14", "ropo", {}),
        ("repo_eta0.9", "re-po", {}),
    ],
)
def test_gradient_probes(vectors, entry, name, options):
    probe = vectors["gradient_probe"]
    close(gradient(name, probe["m"], **options), probe[entry])


def test_the_tie_loss_at_the_probes(vectors):
    probe = vectors["gradient_probe"]
    m = f64(probe["m"]).requires_grad_()
    tie_loss(m).sum().backward()
    close(m.grad, probe["tie_softplus_abs"])


def test_one_side_of_a_kto_pair_at_the_probes(vectors):
    probe = vectors["gradient_probe"]
    # One pair a call and a rejected side that pulls K to 0: the chosen half, by itself.
    for m, expected in zip(probe["m"], probe["kto_like_half"], strict=True):
        chosen = f64([m]).requires_grad_()
        zero, one = f64([0.0]), f64([1.0])
        logps = PairLogps(chosen, f64([-50.0]), zero, zero, one, one)
        build_objective("kto-pair", beta=1.0)(logps, progress=0.0).loss.sum().backward()
        close(2 * chosen.grad, [expected])


def test_length_normalised_dpo(batch):
    out = build_objective("dpo-ln", beta=7.0)(batch, progress=0.0)
    h = f64([-2.5 / 100 + 10.25 / 130, -2.25 / 80 - 6.0 / 75, 10.5 / 210 + 2.5 / 190,
             4.25 / 60 - 3.75 / 72])  # fmt: skip
    close(out.loss, torch.log1p(torch.exp(-7.0 * h)))


def test_defaults_are_the_published_ones():
    expected = {
        "cdpo": {"epsilon": 0.1}, "rdpo-robust": {"epsilon": 0.1}, "rdpo-length": {"alpha": 0.01},
        "ropo": {"alpha": 14.0, "trim": 0.0}, "re-po": {"alpha": 0.1}, "ipo": {"tau": 0.1},
        "dr-dpo": {"beta_prime": 1.0}, "simpo": {"gamma": 1.0},
        "gamma-po": {"gamma_0": 0.5, "tau": 1.0},
    }  # fmt: skip
    for name, options in expected.items():
        objective = build_objective(name, beta=2.0)
        assert {option: getattr(objective, option) for option in options} == options
    assert build_objective("re-po", beta=1.0).eta.item() == 0.9


def test_gamma_po_keeps_the_last_margins_and_draws_from_them():
    """Against plain numpy: a queue of 2,048, a pool of 256, margins remembered at a step's end."""
    objective = build_objective("gamma-po", beta=1.0, gamma_0=0.4, tau=0.7, seed=3)
    generator = torch.Generator().manual_seed(3)
    queue = torch.randn(8, generator=generator, dtype=torch.float64).numpy()
    rng = np.random.default_rng(0)
    for _ in range(30):
        margins, parts = rng.normal(size=96), []
        for index in (0, 1):
            m = margins[48 * index : 48 * index + 48]
            room = 256 - len(m)
            drawn = queue
            if room < len(queue):
                drawn = queue[torch.randperm(len(queue), generator=generator)[:room].numpy()]
            pool = np.concatenate([m, drawn])
            p, step = np.full(len(pool), 1 / len(pool)), min(0.5 / 0.7, 1)
            for _ in range(20):
                gamma = 0.4 * len(pool) * p
                slope = 0.7 * (1 + np.log(len(pool) * (p + 1e-10)))
                slope = slope + 0.4 / (1 + np.exp(-(gamma - pool)))
                p = p * np.exp(-step * slope)
                p = p / p.sum()
            expected = np.log1p(np.exp(-(m - (gamma[: len(m)] - 0.4))))
            close(objective(of_margin(m), 0.5, (index, 2)).loss, expected)
            parts.append(m)
        queue = np.concatenate([queue, *parts])[-2048:]
    assert len(queue) == len(objective.queue) == 2048


@pytest.mark.parametrize(("pairs", "trim", "kept"), [(4, 0.2, 3), (100, 0.29, 71), (5, 0.2, 4),
                                                     (2, 0.9, 1)])  # fmt: skip
def test_ropo_keeps_the_share_that_trim_leaves(pairs, trim, kept):
    out = build_objective("ropo", beta=1.0, trim=trim)(of_margin(np.arange(pairs) / 10), 0.5)
    assert (out.loss > 0).sum().item() == kept


def test_re_pos_reliability_never_leaves_the_open_interval():
    repo = build_objective("re-po", beta=1.0, alpha=1.0)
    for _ in range(3):
        repo(of_margin([500.0] * 4), progress=0.5)
    assert repo.eta.item() == 1 - 1e-6


def test_two_ranks_with_unequal_batches_are_one_batch(tmp_path):
    """Losses of every objective over two steps of 5 + 2 and 3 + 6 pairs, against one process."""
    expected = {name: _two_steps(name, lambda step: slice(None)) for name in OBJECTIVES}
    torch.multiprocessing.spawn(_rank, args=(str(tmp_path),), nprocs=2)
    for name, (losses, state) in expected.items():
        ranks = [torch.load(tmp_path / f"{name}-{rank}.pt") for rank in (0, 1)]
        for step in range(2):
            both = torch.cat([ranks[0][0][step], ranks[1][0][step]])
            torch.testing.assert_close(both, losses[step], rtol=1e-12, atol=1e-12)
        assert str(ranks[0][1]) == str(ranks[1][1])
        if name == "re-po":
            assert ranks[0][1]["eta"] == pytest.approx(state["eta"], rel=1e-12)


_SPLITS = ((5, 2), (3, 6))


def _two_steps(name, own):
    options = {"ropo": {"trim": 0.3}, "gamma-po": {"gamma_0": 0.5}}.get(name, {})
    objective = build_objective(name, beta=1.0, **options)
    out = []
    for step, sizes in enumerate(_SPLITS):
        generator = torch.Generator().manual_seed(step)
        m = 2 * torch.randn(sum(sizes), generator=generator, dtype=torch.float64)
        out.append(objective(of_margin(m[own(step)]), 0.5).loss.detach())
    return out, objective.state_dict()


def _rank(rank, folder):
    store = torch.distributed.FileStore(f"{folder}/store", 2)
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=2)
    for name in OBJECTIVES:

        def own(step):
            first = _SPLITS[step][0]
            return slice(0, first) if rank == 0 else slice(first, None)

        torch.save(_two_steps(name, own), f"{folder}/{name}-{rank}.pt")
    torch.distributed.destroy_process_group()


# ---- limits and identities -----------------------------------------------------------------------

GRID = torch.linspace(-6, 6, 25, dtype=torch.float64)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("cdpo", {"epsilon": 0.0}),
        ("rdpo-robust", {"epsilon": 0.0}),
        ("rdpo-length", {"alpha": 0.05}),  # of_margin has equal lengths
        ("re-po", {"eta": 1.0, "alpha": 0.0}),
        ("gamma-po", {"gamma_0": 0.0}),
        ("gamma-po", {"gamma_0": 0.5, "tau": 1e9}),
        ("dr-dpo", {"beta_prime": 1e7}),
        ("plc", {"recipe": "conservative", "prior": (1.0, 0.0, 0.0)}),
    ],
)
def test_objectives_that_become_dpo(name, options):
    close(gradient(name, GRID, **options), gradient("dpo", GRID), 1e-6)


def test_batch_objectives_that_become_dpo():
    for m in ([1.3], [0.7] * 5):
        close(gradient("dr-dpo", m), gradient("dpo", m))
    logps = of_margin([0.7] * 5)
    same = build_objective("gamma-po", beta=1.0, gamma_0=0.5)
    same.queue = f64([0.7] * 8)
    same(logps, progress=0.0).loss.sum().backward()
    close(logps.policy_chosen.grad, gradient("dpo", [0.7] * 5))


def test_robust_dpo_is_unbiased_and_linear_in_dpo():
    e = 0.2
    ahead, back = (losses("rdpo-robust", s * GRID, epsilon=e) for s in (1, -1))
    close((1 - e) * ahead + e * back, losses("dpo", GRID).detach())
    close(ahead, (losses("dpo", GRID) - e / (1 - 2 * e) * GRID).detach())
    close(losses("cdpo", GRID, epsilon=e), (losses("dpo", GRID) + e * GRID).detach())


def test_cdpo_turns_at_the_smoothed_labels_margin():
    turn = math.log(0.9 / 0.1)
    below, at, above = gradient("cdpo", [turn - 0.1, turn, turn + 0.1], epsilon=0.1)
    assert below < 0 < above
    assert at.abs() < 1e-12


@pytest.mark.parametrize("alpha", [2.5, 6.0, 14.0, 30.0])
def test_ropos_largest_gradient_is_one(alpha):
    m = torch.linspace(-8, 8, 200_001, dtype=torch.float64)
    steepest = gradient("ropo", m, alpha=alpha).abs().max()
    assert steepest.item() == pytest.approx(1.0, abs=1e-8)


def test_ropo_trims_the_lowest_margins_after_a_fifth_of_training():
    m = [0.5, -2.0, 1.0, -1.0, 3.0]
    ropo = build_objective("ropo", beta=1.0, trim=0.4)
    early, late = (ropo(of_margin(m), progress=p).loss for p in (0.19, 0.2))
    assert (early > 0).all()
    # Two of five are dropped; the mean over the step is then that of the three kept.
    expected = early * f64([1, 0, 1, 0, 1]) * 5 / 3
    close(late, expected.detach())


def test_re_po_starts_as_cdpo_and_learns_nothing_from_zero_margins():
    close(gradient("re-po", [0.0]), [-0.4])
    repo = build_objective("re-po", beta=1.0)
    repo(of_margin([0.0] * 8), progress=0.0)
    assert repo.eta.item() == pytest.approx(0.9)
    close(gradient("re-po", [0.0, 1.0, -1.0], eta=0.5, alpha=0.0)[:1], [0.0])


@pytest.mark.parametrize(
    ("options", "same_as"),
    [
        ({"gate": False, "warmup": 0, "schedule": "constant"}, None),
        ({"states": ("clean", "tie")}, "flip"),
        ({"states": ("clean", "flip")}, "tie"),
    ],
)
def test_ablations_of_states_and_gate(options, same_as):
    m = [2.0, -1.0, 0.3, -2.5]
    out = build_objective("plc", beta=1.0, **options)(of_margin(m), progress=0.0)
    if same_as is None:
        # No deferral: from the first step every pair gets the whole correction.
        assert out.routing.weight.tolist() == pytest.approx([0.85] * 4)
    else:
        assert getattr(out.routing, same_as).tolist() == [0.0] * 4
        others = out.routing.clean + out.routing.flip + out.routing.tie
        assert others.tolist() == pytest.approx([1.0] * 4)


def test_without_calibration_z_is_the_margin():
    out = build_objective("plc", beta=1.0, calibrate=False)(of_margin([2.0, -1.0]), progress=0.5)
    assert out.routing.z.tolist() == [2.0, -1.0]


def test_confidence_reweighting_only_ever_shrinks_dpo():
    m = [2.0, -1.0, 0.3, -2.5]
    plc = build_objective("plc", beta=1.0, correct=False, schedule="constant")
    logps = of_margin(m)
    out = plc(logps, progress=0.5)
    out.loss.sum().backward()
    kept = 1 - out.routing.weight * (1 - out.routing.clean)
    close(logps.policy_chosen.grad, kept * gradient("dpo", m))
    assert (kept < 1).all()


# ---- what must hold for any input ----------------------------------------------------------------

finite = st.floats(-1e4, 1e4, allow_nan=False, width=32)
batches = st.integers(1, 9).flatmap(lambda n: arrays("float32", (4, n), elements=finite))
names = st.sampled_from(sorted(OBJECTIVES))


def prepared(values, dtype=torch.float32):
    policy = [torch.tensor(v).to(dtype).requires_grad_() for v in values[:2]]
    reference = [torch.tensor(v).to(dtype) for v in values[2:]]
    n = values.shape[1]
    return PairLogps(*policy, *reference, torch.arange(1, n + 1), torch.full((n,), 7))


@settings(max_examples=200, deadline=None)
@given(names, batches, st.sampled_from([torch.float32, torch.bfloat16]), st.floats(0, 1))
def test_losses_gradients_and_weights_are_finite_and_in_range(name, values, dtype, progress):
    logps = prepared(values, dtype)
    out = build_objective(name, beta=1.0)(logps, progress=progress)
    assert out.loss.shape == out.margin.shape == logps.policy_chosen.shape
    assert out.loss.isfinite().all()
    out.loss.mean().backward()
    assert all(x.grad.isfinite().all() for x in logps[:2] if x.grad is not None)
    if out.routing is not None:
        q = torch.stack((out.routing.clean, out.routing.flip, out.routing.tie))
        torch.testing.assert_close(q.sum(0), torch.ones_like(q[0]))
        for share in (*q, out.routing.confidence, out.routing.weight):
            assert ((share >= 0) & (share <= 1)).all()


@settings(max_examples=100, deadline=None)
@given(names, batches, st.randoms(use_true_random=False))
def test_the_order_of_a_batch_changes_nothing_else(name, values, random):
    order = list(range(values.shape[1]))
    random.shuffle(order)
    logps = prepared(values.astype("float64"), torch.float64)
    straight = build_objective(name, beta=0.1)(logps, progress=0.6)
    turned = build_objective(name, beta=0.1)(logps.select(torch.tensor(order)), progress=0.6)
    torch.testing.assert_close(turned.loss, straight.loss[order], rtol=1e-9, atol=1e-9)


@settings(max_examples=100, deadline=None)
@given(batches)
def test_swapping_chosen_and_rejected_mirrors_what_should_mirror(values):
    logps = prepared(values.astype("float64"), torch.float64)
    swapped = PairLogps(*(logps[i] for i in (1, 0, 3, 2, 5, 4)))
    outs = [build_objective("plc", beta=0.01)(x, progress=0.5) for x in (logps, swapped)]
    assert torch.equal(outs[0].margin, -outs[1].margin)
    # z mirrors; with a prior that treats clean and flip alike, so do their weights.
    torch.testing.assert_close(outs[0].routing.z, -outs[1].routing.z, rtol=1e-6, atol=1e-6)
    even = [
        build_objective("plc", beta=0.01, prior=(0.4, 0.4, 0.2))(x, progress=0.5).routing
        for x in (logps, swapped)
    ]
    torch.testing.assert_close(even[0].clean, even[1].flip, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(even[0].tie, even[1].tie, rtol=1e-5, atol=1e-6)
    for e in (0.1, 0.3):
        ahead, back = (
            build_objective("cdpo", beta=0.01, epsilon=x)(y, 0.5).loss
            for x, y in ((e, logps), (e, swapped))
        )
        m = outs[0].margin
        torch.testing.assert_close(ahead - back, -(1 - 2 * e) * m, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_log_probs_that_are_not_finite_name_the_pairs(name, bad):
    logps = of_margin([0.1, bad, 0.3, bad])
    objective = build_objective(name, beta=1.0)
    before = objective.state_dict()
    with pytest.raises(NonFiniteError, match=r"2 pairs .* positions 1, 3"):
        objective(logps, progress=0.5)
    assert objective.state_dict() == before


def test_tensors_of_different_shapes_are_a_sentence():
    logps = of_margin([0.1, 0.2])
    with pytest.raises(ValueError, match="share one shape"):
        build_objective("dpo", beta=1.0)(logps._replace(policy_rejected=torch.zeros(3)), 0.5)


# ---- states --------------------------------------------------------------------------------------

STEPS = torch.randn(5, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_states_survive_saving_and_evaluation_moves_none(name):
    whole, first, second = (build_objective(name, beta=1.0) for _ in range(3))
    for step, m in enumerate(STEPS):
        expected = whole(of_margin(m), progress=step / 5).loss
        if step == 2:
            second.load_state_dict(json.loads(json.dumps(first.state_dict())))
        resumed = first if step < 2 else second
        before = resumed.state_dict()
        resumed(of_margin(-3 * m), progress=step / 5, update=False)
        assert resumed.state_dict() == before
        assert torch.equal(resumed(of_margin(m), progress=step / 5).loss, expected)


@pytest.mark.parametrize("name", ["dpo", "re-po", "gamma-po", "plc"])
def test_a_foreign_state_is_refused(name):
    with pytest.raises(ValueError, match=r"no state of|DPO has no state"):
        build_objective(name, beta=1.0).load_state_dict({"foreign": 1})


@pytest.mark.parametrize(
    "name", sorted(set(OBJECTIVES) - {"plc", "dr-dpo", "kto-pair", "gamma-po"})
)
def test_a_split_step_is_the_same_step(name):
    split, whole = build_objective(name, beta=1.0), build_objective(name, beta=1.0)
    for m in STEPS:
        parts = [split(of_margin(p), 0.5, (i, 4)).loss for i, p in enumerate(m.split(2))]
        torch.testing.assert_close(torch.cat(parts), whole(of_margin(m), 0.5).loss)
    assert split.state_dict() == pytest.approx(whole.state_dict())


@pytest.mark.parametrize("name", ["dr-dpo", "kto-pair"])
def test_batch_objectives_couple_one_forward_under_accumulation(name):
    objective = build_objective(name, beta=1.0)
    part = objective(of_margin(STEPS[0][:2]), 0.5, (0, 4)).loss
    assert torch.equal(part, objective(of_margin(STEPS[0][:2]), 0.5).loss)


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        ("cdpo", {"epsilon": 0.5}, r"epsilon must be in \[0, 0.5\)"),
        ("cdpo", {"epsilon": -0.1}, "epsilon must be in"),
        ("rdpo-robust", {"epsilon": 0.7}, "epsilon must be in"),
        ("rdpo-robust", {"epsilon": math.nan}, "epsilon must be a finite number"),
        ("cdpo", {"epsilon": "0.1"}, "epsilon must be a finite number"),
        ("simpo", {"gamma": math.inf}, "gamma must be a finite number"),
        ("rdpo-length", {"alpha": -1.0}, "alpha must be at least 0"),
        ("ipo", {"tau": 0.0}, "tau must be positive"),
        ("simpo", {"gamma": -1.0}, "gamma must be at least 0"),
        ("dr-dpo", {"beta_prime": -1.0}, "beta_prime must be positive"),
        ("ropo", {"alpha": 1.0}, "must be above 2"),
        ("ropo", {"trim": 1.0}, "trim must be in"),
        ("re-po", {"eta": 0.3}, "in \\[0.5, 1\\]"),
        ("gamma-po", {"tau": -1.0}, "tau must be positive"),
        ("gamma-po", {"gamma_0": -1.0}, "gamma_0"),
        ("plc", {"tau": 1.0}, "would ignore 'tau'"),
        ("plc", {"warmup": 1.0}, r"warmup must be in \[0, 1\)"),
        ("dpo", {"label_smoothing": 0.1}, 'use "cdpo" or "rdpo-robust" with epsilon'),
        ("rso", {"loss_type": "hinge"}, "would ignore 'loss_type'"),
    ],
)
def test_options_that_cannot_be_meant(name, options, sentence):
    with pytest.raises(ValueError, match=sentence):
        build_objective(name, beta=1.0, **options)
