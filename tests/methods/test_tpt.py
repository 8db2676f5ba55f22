"""TPT and what prompt tuners share: card 4, plain-loop oracles, exact reset, any tokeniser."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import oracle
import prompt_oracle as slow
from adte import InputError, create_method
from adte.core import functional as F
from adte.methods import prompt_tuning
from adte.methods.prompt_tuning import PromptLearner, adamw
from adte.methods.tpt import TPT
from adte.methods.tracking import marginal
from adte.testing.small import LENGTH, WORDS, SmallModel

Z = torch.from_numpy(oracle.F_LOGITS)


def near(got, want, digits=4):
    np.testing.assert_allclose(np.asarray(got), want, rtol=0, atol=0.5 * 10**-digits + 1e-9)


# --------------------------------------------------------------------------- the card


def test_card_4_views_and_marginal_entropy():
    tpt = TPT(keep=0.5)
    entropy, kept = tpt.select(Z)
    near(entropy, [0.7676, 0.4052, 1.0953, 0.5876])
    assert kept.tolist() == [1, 3]
    near(marginal(F.log_probs(Z[kept])).exp(), [0.0610, 0.5037, 0.4354])
    near(tpt.loss(Z[kept]), 0.8780)


def test_card_4_adamw():
    x, g = torch.tensor([0.3, -0.2], dtype=torch.float64), torch.tensor([4.0, -0.001])
    near(adamw(x, lambda _: g.double(), 1, 5e-3, 0.01), [0.294985, -0.19499], 6)


# --------------------------------------------------------------------------- the oracle


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_against_plain_loops(steps):
    model, samples = slow.world(3)
    towers, method = slow.Towers(model, slow.NAMES), TPT(keep=0.3, steps=steps)
    for sample in samples:
        f = sample.features.numpy()
        start = towers.logits(f, towers.start, sample.scale)
        kept = slow.surest(start, 0.3)

        def loss(c, f=f, kept=kept, sample=sample):
            return slow.marginal_entropy(towers.logits(f[kept], c, sample.scale))

        tuned = slow.adamw(loss, towers.start, steps)
        want = oracle.softmax(towers.logits(f[:1], tuned, sample.scale))[0]
        got = method.predict(sample)
        assert got.kept.tolist() == kept
        np.testing.assert_allclose(got.probs, want, atol=1e-7)
        if not steps:  # no step: the zero-shot answer of the base view
            np.testing.assert_allclose(got.probs, oracle.softmax(sample.logits[0]), atol=1e-9)


# --------------------------------------------------------------------------- the drop-in entropy


@pytest.mark.parametrize("entropy", ["tsallis", "adaptive"])
def test_measure_ranks_the_views_and_is_the_loss(entropy):
    _, samples = slow.world(12)
    method = create_method("tpt", entropy=entropy, q=0.4, ratio=0.5, few=0)
    for sample in samples:
        method.learn(sample)
    assert bool(method.state_dict()) == (entropy == "adaptive")
    prior = method.class_prior.log_prior if entropy == "adaptive" else None
    z = samples[0].logits
    P = oracle.softmax(z)
    if entropy == "tsallis":
        want = [oracle.tsallis(p, 0.4) for p in P]
        of_mean = oracle.tsallis(P.mean(0), 0.4)
    else:
        q = oracle.q_from_prior(prior.tolist())
        want = [oracle.adaptive_vanishing(p, q) for p in P]
        of_mean = oracle.adaptive_vanishing(P.mean(0), q)
    got, kept = method.select(z, prior)
    np.testing.assert_allclose(got, want, rtol=1e-9)
    assert kept.tolist() == oracle.rank(want)[:4]
    assert float(method.loss(z, prior)) == pytest.approx(of_mean, rel=1e-9)
    p = method.predict(samples[0])
    assert (p.q is not None) == (entropy == "adaptive")
    assert not torch.equal(p.probs, TPT(keep=0.5).predict(samples[0]).probs)


def test_adjustment_acts_from_its_place_on():
    _, samples = slow.world(8)
    z, tau = samples[0].logits, 0.7
    for place, where in (("before", (1, 1, 1)), ("per-view", (0, 1, 1)), ("after", (0, 0, 1))):
        method = create_method("tpt", adjust=place, tau=tau)
        for sample in samples:
            method.learn(sample)
        prior = method.class_prior.log_prior
        log_p = [F.adjust(z, prior, tau) if moved else F.log_probs(z) for moved in where]
        torch.testing.assert_close(method.select(z, prior)[0], F.shannon(log_p[0]))
        torch.testing.assert_close(method.loss(z, prior), F.shannon(F.mean_probs(log_p[1])))
        p = method.answer(z[0], prior)
        torch.testing.assert_close(p.probs, log_p[2][0].exp())


# --------------------------------------------------------------------------- nothing is left behind


def test_learner_follows_model_and_classes():
    _, (sample,) = slow.world(1)
    method = TPT()
    method.predict(sample)
    known = method._learner
    method.predict(replace(sample, classes=tuple(slow.NAMES)))
    assert method._learner is known
    other = replace(sample, classes=["dog", *slow.NAMES[1:]])
    torch.testing.assert_close(method.predict(other).probs, TPT().predict(other).probs)
    assert method._learner is not known
    method.predict(replace(sample, model=SmallModel().double()))
    assert method._learner.model is not sample.model
    sample.model.float()  # moved or cast since: its old embeddings no longer fit
    method.predict(sample)
    sample.model.double()
    assert torch.equal(method.predict(sample).probs, TPT().predict(sample).probs)
    with torch.no_grad():  # trained since, or other weights were loaded
        sample.model.project.weight.mul_(1.5)
    assert torch.equal(method.predict(sample).probs, TPT().predict(sample).probs)


# --------------------------------------------------------------------------- chunks


@pytest.mark.parametrize("chunk", [1, 2, 3, 4, 64])
def test_chunks_change_memory_not_numbers(chunk):
    model = SmallModel()
    whole, parts = (PromptLearner(model, slow.NAMES, chunk=c) for c in (0, chunk))
    g = torch.Generator().manual_seed(0)
    pull = torch.randn(3, 5, model.dim, generator=g)
    contexts = whole.initial + 0.1 * torch.randn(3, *whole.initial.shape, generator=g)
    out = []
    for learner in (whole, parts):
        c = contexts.clone().requires_grad_()
        weights = learner.class_weights(c)
        assert weights.shape == (3, 5, model.dim)
        out.append((weights, *torch.autograd.grad((weights * pull).sum(), c)))
    for a, b in zip(*out, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-6)
    assert all(p.grad is None for p in model.parameters())


def test_chunks_bound_what_the_tower_sees_at_once():
    rows: list[int] = []

    class Counting(SmallModel):
        def encode_embeddings(self, ids, embeddings):
            rows.append(len(ids))
            return super().encode_embeddings(ids, embeddings)

    model = Counting()
    names = [f"thing number {i}" for i in range(50)]
    learner, whole = (PromptLearner(model, names, chunk=c) for c in (16, 0))
    context = learner.initial.clone().requires_grad_()
    given = [learner.ids, learner.embeddings, whole.ids, whole.embeddings, context]
    known = {x.untyped_storage().data_ptr() for x in (*given, *model.parameters())}

    def kept(learner):
        """Numbers that wait for the way back, beyond those that are there anyway."""
        saved = []

        def note(x):
            saved.append(0 if x.untyped_storage().data_ptr() in known else x.numel())
            return x

        with torch.autograd.graph.saved_tensors_hooks(note, lambda x: x):
            weights = learner.class_weights(context)
        return weights, sum(saved)

    weights, chunked = kept(learner)
    assert rows == [16, 16, 16, 2]
    weights.sum().backward()
    assert sorted(rows) == sorted(2 * [16, 16, 16, 2])  # activations were computed again
    assert chunked < kept(whole)[1] / 10


def test_a_budget_decides_whether_activations_are_kept(monkeypatch):
    names = ["cat", *(f"thing number {i}" for i in range(49))]
    learner = PromptLearner(SmallModel(), names)
    assert learner.groups == ([50], False)
    for classes in (1, 7):
        monkeypatch.setattr(prompt_tuning, "BUDGET", classes * learner.activations)
        tight = PromptLearner(SmallModel(), names)
        assert (max(tight.groups[0]), tight.groups[1]) == (classes, True)
        torch.testing.assert_close(
            tight.class_weights(tight.initial), learner.initial_weights, rtol=0, atol=1e-6
        )


def test_classes_of_like_length_go_together():
    names = [f"{'very ' * (i % 3)}old tree {i}" for i in range(48)]
    learner = PromptLearner(SmallModel(), names)
    assert learner.groups == ([16, 16, 16], False)
    assert learner.order.tolist() == [i for k in range(3) for i in range(48) if i % 3 == k]
    whole = PromptLearner(SmallModel(), names, chunk=0)
    torch.testing.assert_close(learner.initial_weights, whole.initial_weights, rtol=0, atol=1e-6)


def test_the_first_pass_is_recalled_with_its_gradient():
    rows: list[int] = []

    class Counting(SmallModel):
        def encode_embeddings(self, ids, embeddings):
            rows.append(len(ids))
            return super().encode_embeddings(ids, embeddings)

    learner, plain = (PromptLearner(Counting(), slow.NAMES, chunk=c) for c in (None, 0))
    pull = torch.randn(5, 16, generator=torch.Generator().manual_seed(0))

    def slope(learner, at):
        at = at.clone().requires_grad_()
        weights = learner.class_weights(at)
        return weights, torch.autograd.grad((weights * pull).sum(), at)[0]

    for at in (learner.initial, learner.initial, learner.initial + 0.1):
        for got, want in zip(slope(learner, at), slope(plain, at), strict=True):
            torch.testing.assert_close(got, want, rtol=0, atol=1e-6)
    rows.clear()
    slope(learner, learner.initial)
    assert rows == []
    slope(learner, learner.initial + 0.1)
    assert rows == [5]


# --------------------------------------------------------------------------- any tokeniser


class Started(SmallModel):
    """Start and end tokens around the words, as in CLIP."""

    def _ids(self, texts):
        rows = [[1, *(i for i in r if i), WORDS - 1] for r in super()._ids(texts).tolist()]
        return torch.tensor([(r + [0] * LENGTH)[:LENGTH] for r in rows])


class Ended(SmallModel):
    """No start token, and the end token also pads, as in some SentencePiece models."""

    def _ids(self, texts):
        return super()._ids(texts).where(super()._ids(texts) > 0, torch.tensor(1))


class Letters(SmallModel):
    """A token a letter, as short as the longest text."""

    def _ids(self, texts):
        width = max(map(len, texts))
        return torch.tensor([[ord(c) % 90 + 1 for c in t] + [0] * (width - len(t)) for t in texts])

    def encode_embeddings(self, ids, embeddings):
        real = (ids > 0).unsqueeze(-1).to(embeddings.dtype)
        x = torch.tanh(self.mix(embeddings.cumsum(1) * 0.1)) * real
        return torch.nn.functional.normalize(self.project(x.sum(1) / real.sum(1)), dim=-1)


@pytest.mark.parametrize(
    ("kind", "start", "end"),
    [(SmallModel, 0, 4), (Started, 1, 5), (Ended, 0, 4), (Letters, 0, len("a photo of a"))],
)
@pytest.mark.parametrize("names", [slow.NAMES, ["a_cat"], ["dog", "dog house", "dog"]])
def test_the_context_is_found(kind, start, end, names):
    model = kind()
    learner = PromptLearner(model, names)
    assert (learner.start, learner.end) == (start, end)
    with torch.no_grad():
        want = model.encode_text([f"a photo of a {n.replace('_', ' ')}." for n in names])
        torch.testing.assert_close(learner.initial_weights, want)
        moved = learner.class_weights(learner.initial + 0.1)
    assert not torch.allclose(moved, want, atol=1e-3)


# --------------------------------------------------------------------------- input


def test_bad_input():
    _, (sample,) = slow.world(1)
    for part in ("features", "model", "classes"):
        with pytest.raises(InputError, match=f"needs {part}"):
            TPT().predict(replace(sample, **{part: None}))
    with pytest.raises(InputError, match="4 class names"):
        TPT().predict(replace(sample, classes=slow.NAMES[:4]))
    with pytest.raises(InputError, match="features of shape"):
        TPT().predict(replace(sample, features=sample.features[:2]))
    for option in ("lr", "decay", "steps", "chunk"):
        with pytest.raises(InputError, match=f"{option}=-1"):
            create_method("tpt", **{option: -1})
    with pytest.raises(InputError, match="outside"):
        create_method("tpt", ratio=0.0)
