"""One process of the study: a model that is loaded once, and jobs that start from a copy of it."""

from __future__ import annotations

import copy
import dataclasses
import json
import logging
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from accelerate import PartialState
from datasets import Dataset
from transformers import PrinterCallback, set_seed

from notebooks.replication import measures, rivals
from notebooks.replication.judge import Judge
from notebooks.replication.plan import Choice, Job, ReplicationConfig
from notebooks.replication.results import job_row
from notebooks.replication.splits import Material
from plc_core.data import Pairs, load_pairs, vote_groups
from plc_core.data.world import RESPONSE_TOKENS, gold_reward
from plc_core.data.world.language import parse_prompt
from plc_core.engine.arguments import training_arguments
from plc_core.engine.config import TrainConfig
from plc_core.engine.forward.logprobs import autocast, pair_logps, response_logps, verify_packing
from plc_core.engine.forward.packing import PairCollator, StepCollator, pair_sizes, response_lengths
from plc_core.engine.models.adapters import add_lora
from plc_core.engine.models.load import compile_layers, load_policy, model_identity
from plc_core.engine.pipeline import objectives
from plc_core.engine.reference import with_reference
from plc_core.engine.sampling import generate_responses
from plc_core.engine.tokens.tokenized import prompt_ids, tokenize_pairs
from plc_core.engine.trainer import PreferenceTrainer
from plc_core.engine.training_pairs import training_pairs, with_pair_priors
from plc_core.engine.visits import VisitRecorder
from plc_core.label_audit.auditing import audit
from plc_core.label_audit.config import Kind
from plc_core.label_audit.evidence import ModelReadings, likelihoods
from plc_core.label_audit.hidden_states import read_model
from plc_core.label_audit.probe import prompt_folds
from plc_core.label_audit.result import Audit
from plc_core.objective import Router
from plc_core.progress import Progress
from plc_core.runs import create_run
from plc_core.storage.paths import cache_dir

logger = logging.getLogger(__name__)

_SAMPLE_SEED = 20_260_103
_SIDES = ("chosen", "rejected")
VISIT_COLUMNS = [
    "pair_id", "step", "margin", "z", "q_clean", "q_flip", "q_tie", "weight", "p_flip"
]  # fmt: skip


class Outcome(NamedTuple):
    """What a job leaves: its row, its numbers, its answers' rewards, its visits."""

    job: dict[str, Any]
    measures: list[dict[str, Any]]
    rewards: list[dict[str, Any]]
    visits: pd.DataFrame


class _Probe(NamedTuple):
    tokens: Dataset  # with reference log-probs
    pairs: pd.DataFrame
    lengths: np.ndarray  # [N, 2]: tokens of the chosen and the rejected answer

    @property
    def longer(self) -> np.ndarray:
        """Tokens that the chosen answer has more."""
        return np.asarray(self.lengths[:, 0] - self.lengths[:, 1])


class Laboratory:
    """Runs jobs one after the other in this process, on its device.

    Args:
        study: the settings.
        material: where the pairs lie.
        results: the folder of the results, which keeps the reward model.
        scratch: a folder for run folders, which are removed when they have been read.
        workers: processes at a time on its device, for the record.
    """

    def __init__(
        self,
        study: ReplicationConfig,
        material: Material,
        results: Path,
        scratch: Path,
        workers: int,
    ) -> None:
        self.study, self.material, self.results = study, material, results
        self.scratch, self.workers = scratch, workers
        self.progress = Progress()
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.bf16 = study.train.get("precision") == "bf16"
        adapted = self.bf16 and study.train.get("lora_rank", 0)
        policy, self.tokenizer = load_policy(study.model, "bf16" if adapted else "fp32")
        self.policy: Any = policy.to(self.device).eval()  # type: ignore[arg-type]
        self.identity = model_identity(self.policy)
        self._probes: dict[str, _Probe] = {}
        self._rewards: np.ndarray | None = None  # of the pairs of the part test
        self._judge: Judge | None = None
        self._verified = False
        self.prompts = [prompt_ids(self.tokenizer, turns) for turns in material.prompts]

    def run(self, job: Job, choice: Choice | None) -> Outcome:
        """Train the job's policy and measure it."""
        started = time.monotonic()
        config = job.config(self.study, choice, self.material.files)
        config = config.model_copy(update={"runs_dir": str(self.scratch)})
        pairs = training_pairs(config, self.policy, self.tokenizer, self.progress)
        fingerprint, audited = pairs.fingerprint, None
        if job.audit is not None:
            step = job.audit
            model = self.study.model if "hidden states" in step.evidence else None
            audited = audit(pairs, model, evidence=step.evidence, max_length=config.max_length)
            if job.slice == "evidence":
                found = measures.of_audit(audited, self._rivals(audited))
                row = job_row(job, config) | self._made(started, len(audited.pairs), fingerprint)
                return Outcome(row, _named(job, found), [], pd.DataFrame())
            if step.alike:
                mean = np.full(len(audited.pairs), audited.probabilities.mean())
                audited = dataclasses.replace(audited, probabilities=mean)
            pairs = audited.cleaned(step.policy)
        tokens = tokenize_pairs(pairs, self.tokenizer, config.max_length, progress=self.progress)
        collator = self._collator(config.pairs_per_forward)
        if not self._verified:
            verify_packing(self.policy, tokens.dataset, self.bf16, config.row_tokens)
            self._verified = True
        dataset, _ = self._with_reference(tokens.dataset)
        if job.audit is not None and job.audit.policy in ("weight", "prior"):
            dataset = with_pair_priors(dataset, tokens.pairs)
        set_seed(config.seed)
        objective, shadow = objectives(config)
        run = create_run(self.scratch, config.name, {"kind": "training"})
        recorder = VisitRecorder(run, dataset["pair_id"], config.beta)
        arguments = training_arguments(config, run, len(dataset), PartialState())
        arguments.save_strategy = "no"
        policy = self._start(config, compiled=config.compile)
        trainer = PreferenceTrainer(
            policy, arguments, dataset, collator, objective, shadow, recorder
        )
        trainer.remove_callback(PrinterCallback)
        training = time.monotonic()
        trainer.train()
        recorder.flush()
        train_seconds = time.monotonic() - training
        policy.eval()
        visits, table = run.visits(VISIT_COLUMNS), _pairs_table(tokens.pairs)
        lengths = response_lengths(tokens.dataset)
        table["tokens"], table["longer"] = lengths.sum(1), lengths[:, 0] - lengths[:, 1]
        # After an audit the markers of corruption are no longer those of the labels in training.
        found = (
            measures.of_training(visits, table, run.metrics())
            if audited is None
            else measures.of_audit(audited)
        )
        router = trainer.router
        assert router is not None  # every objective has its own or a shadow
        held_out = "select" if job.slice == "choice" else "test"
        probe = self.probe(held_out)
        margins = self._margins(policy, probe, config.beta)
        found += measures.accuracy(margins, probe.pairs, probe.longer, held_out)
        rewards: list[dict[str, Any]] = []
        if job.slice != "choice":
            found += self._agreement(margins, self._routed(router, margins, probe)[0])
            # People's votes are asked about as they are: of policies that saw the labels as given.
            voted_on = self.study.votes is not None or self.study.model == "world"
            if voted_on and not (job.flip_rate or job.tie_rate):
                probe = self.probe("votes")
                voted = self._margins(policy, probe, config.beta)
                q_flip, q_tie = self._routed(router, voted, probe)
                per_token = voted / probe.lengths.sum(1)
                found += measures.of_votes(q_tie, q_flip, per_token, probe.longer, probe.pairs)
            # The reward model was fitted on part of the fresh pairs.
            if self.prompts and job.mixture != "fresh":
                plain = self._start(config, compiled=False)  # generation has every length
                plain.load_state_dict(policy.state_dict())
                rewards = self._responses(plain)
                columns = ([r[k] for r in rewards] for k in ("reward", "kl", "tokens"))
                found += measures.of_responses(*columns)
        row = job_row(job, config) | self._made(started, len(dataset), fingerprint)
        row |= {
            "steps": trainer.state.global_step,
            "tokens": int(pair_sizes(dataset).sum()),
            "train_seconds": train_seconds,
            "calibration": router.calibration_order,
        }
        compact = visits.merge(table[["pair_id", "flipped", "injected_tie"]], on="pair_id")
        return Outcome(row, _named(job, found), _named(job, rewards), compact.assign(job=job.name))

    def _start(self, config: TrainConfig, compiled: bool) -> Any:
        """A policy to train: a copy, as the reference stays as it is; with adapters if asked."""
        policy = copy.deepcopy(self.policy)
        if compiled:
            compile_layers(policy)
        if config.lora_rank:
            policy = add_lora(policy, config.lora_rank, config.lora_alpha)
        return policy

    def _made(self, started: float, pairs: int, fingerprint: str) -> dict[str, Any]:
        return {
            "pairs": pairs,
            "seconds": time.monotonic() - started,
            "workers": self.workers,
            "device": torch.cuda.get_device_name() if self.device.type == "cuda" else "CPU",
            "model": self.identity,
            "data": fingerprint,
        }

    def _rivals(self, audited: Audit) -> dict[str, np.ndarray]:
        """Other ways to rank the pairs of an audit, larger for a label more likely reversed."""
        model, length = self.study.model, self._max_length
        layer: Any = audited.evidence.details["layer"]

        def features(read: ModelReadings) -> np.ndarray:
            return np.concatenate([block for _, block in (read.hidden or {})[layer]()])

        asked = self.study.rivals
        kinds: set[Kind] = {"hidden states"}
        _, read = read_model(
            audited.pairs,
            model,
            length,
            kinds | ({"likelihood"} if rivals.PERPLEXITY in asked else set()),
            self.progress,
        )
        own = features(read)
        found: dict[str, np.ndarray] = {}
        if rivals.CONFIDENT in asked:
            prompts = [json.dumps(turns) for turns in audited.pairs.dataset["prompt"]]
            found[rivals.CONFIDENT] = rivals.confident_learning(own, prompt_folds(prompts))
        if read.log_probs is not None and read.token_lengths is not None:
            a_token = likelihoods(read.log_probs, read.token_lengths)["log-likelihood a token"]
            found[rivals.PERPLEXITY] = -a_token
        if rivals.REWARD in asked and self.study.shares["reward"]:
            _, others = read_model(self._pairs("reward"), model, length, kinds, self.progress)
            found[rivals.REWARD] = rivals.reward_model(features(others), own)
        return found

    def probe(self, name: str) -> _Probe:
        """A part of the pairs with its reference log-probs; made once."""
        if name not in self._probes:
            tokens = tokenize_pairs(
                self._pairs(name), self.tokenizer, self._max_length, progress=self.progress
            )
            dataset, _ = self._with_reference(tokens.dataset)
            table = _pairs_table(tokens.pairs)
            if name == "votes":
                table["group"] = vote_groups(tokens.pairs)["group"].to_numpy()
            self._probes[name] = _Probe(dataset, table, response_lengths(dataset))
        return self._probes[name]

    @property
    def _max_length(self) -> int:
        return int(self.study.train.get("max_length", 1024))

    def _collator(self, pairs_per_forward: int) -> StepCollator:
        rows = int(self.study.train.get("row_tokens", 128))
        tokens = int(self.study.train.get("tokens_per_forward", 0))
        return StepCollator(PairCollator(rows), pairs_per_forward, tokens)

    def _with_reference(self, tokens: Dataset) -> tuple[Dataset, dict[str, Any]]:
        size = int(self.study.train.get("pairs_per_forward", 64))
        return with_reference(
            tokens, self.policy, cache_dir(), self._collator(size), self.bf16, self.progress
        )

    @torch.no_grad()
    def _margins(self, policy: Any, probe: _Probe, beta: float) -> np.ndarray:
        size = int(self.study.train.get("pairs_per_forward", 64))
        collator = self._collator(size)
        margins = torch.empty(len(probe.tokens), dtype=torch.float64)
        rows = list(probe.tokens)
        with autocast(self.device, self.bf16):
            for start in range(0, len(rows), size):
                for batch in collator(rows[start : start + size])["forwards"]:
                    there = {name: value.to(self.device) for name, value in batch.items()}
                    logps = pair_logps(policy, there, collator.collator.row_tokens)
                    ratio = torch.stack(logps, 1) - there["reference"]
                    margin = beta * (ratio[:, 0] - ratio[:, 1])
                    margins[start + batch["place"]] = margin.double().cpu()
        return np.asarray(margins)

    def _routed(
        self, router: Router, margins: np.ndarray, probe: _Probe
    ) -> tuple[np.ndarray, np.ndarray]:
        """q_flip and q_tie of margins under the calibration at the end of training."""
        there = torch.tensor(margins, device=self.device)
        lengths = torch.tensor(probe.lengths, device=self.device)
        routing = router(there, progress=1.0, update=False, lengths=lengths)
        return routing.flip.cpu().numpy(), routing.tie.cpu().numpy()

    def _agreement(self, margins: np.ndarray, q_flip: np.ndarray) -> list[dict[str, Any]]:
        probe = self.probe("test")
        if self._rewards is None:
            if self.study.model == "world":
                scores = [probe.pairs[f"score_{side}"].to_numpy() for side in _SIDES]
                self._rewards = scores[0] - scores[1]
            else:
                ids = probe.pairs["pair_id"].tolist()
                self._rewards = self.judge.of_pairs(self._pairs("test"), ids)
        return measures.agreement(margins, q_flip, self._rewards, probe.longer)

    @property
    def judge(self) -> Judge:
        """The reward model of this study; fitted where the results do not have it yet."""
        if self._judge is None:
            own = self.study.judge in (None, self.study.model)
            backbone: Any = self.policy, self.tokenizer
            if not own:
                backbone = load_policy(str(self.study.judge))
            model, tokenizer = backbone
            model.to(self.device).eval()
            judge = Judge(model, tokenizer, own, self._max_length, self.bf16)
            self._judge = judge.fit(self.results / "reward.csv", self._pairs("reward"))
        return self._judge

    def _pairs(self, name: str) -> Pairs:
        return load_pairs(self.material.files[name], split=None)

    @torch.no_grad()
    def _responses(self, policy: Any) -> list[dict[str, Any]]:
        """Reward and KL of one sampled answer to each prompt."""
        world = self.study.model == "world"
        most = RESPONSE_TOKENS if world else self.study.response_tokens
        with autocast(self.device, self.bf16):
            answers = generate_responses(
                policy, self.tokenizer, self.prompts, "sampled", most, _SAMPLE_SEED, 256
            )
            ids = [answer.ids for answer in answers]
            collator = self._collator(64).collator
            own, reference = (
                response_logps(model, self.prompts, ids, collator)
                for model in (policy, self.policy)
            )
        if world:
            turns = self.material.prompts
            rewards = [
                gold_reward(parse_prompt(t[0]["content"]), a.text, a.finished)
                for t, a in zip(turns, answers, strict=True)
            ]
        else:
            rewards = self.judge.of_answers(self.material.prompts, answers).tolist()
        return [
            {"prompt": i, "reward": reward, "kl": a - b, "tokens": len(ids[i])}
            for i, (reward, a, b) in enumerate(zip(rewards, own, reference, strict=True))
        ]


def _pairs_table(pairs: Any) -> pd.DataFrame:
    names = [
        "pair_id", "score_chosen", "score_rejected", "source", "flipped", "injected_tie",
    ]  # fmt: skip
    return pairs.dataset.select_columns(names).to_pandas()


def _named(job: Job, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"job": job.name} | row for row in rows]
