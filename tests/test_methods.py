"""The conformance suite on every registered method, and the maths of each."""

from __future__ import annotations

import math
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import dataclass, fields

import numpy as np
import pytest
import torch

from adte import (
    Batch,
    Context,
    InputError,
    Sample,
    SimulatedStream,
    StateError,
    create_method,
    list_methods,
)
from adte.core import functional as F
from adte.core.options import choices
from adte.core.options import options as options_of
from adte.core.prediction import Prediction, Predictions
from adte.core.schema import NONE
from adte.core.state import Entry
from adte.evaluate import predictions, run
from adte.methods import Method, method_info, register
from adte.testing import METHOD_CHECKS as CHECKS
from adte.testing import methods as checks
from adte.testing.methods import check_merge_sums, check_names_say_nothing, check_nothing_hidden

LA = [
    (name, place)
    for name in ("zero-shot", "average", "se", "te", "zero", "adte")
    for place in ("before", "per-view", "after")
]

OLD = {"entropy": "adaptive", "adjust": "before"}  # of "se": the default of release 0.1


QUICK = ("zero-shot", "se", "zero", "adte", "tilt", "tda")  # one of each kind

# How a method learns or is adjusted with other options than its own
FIFO = {"adjust": "before", "estimator": "fixed-point", "bank": "fifo", "size": 3}
OTHERS = [
    ("zero-shot", FIFO),
    ("zero-shot", {**FIFO, "bank": "gap", "threshold": 1.0, "warmup": 5}),
    ("zero-shot", {**FIFO, "bank": "reservoir", "adjust": "after"}),
    ("se", {"entropy": "adaptive", "adjust": "per-view", "estimator": "fixed-point"}),
    ("tilt", {"likeness": 0.0, "frequencies": "as-they-come"}),
    ("tda", {"negative_keep": "newest", "key": "base"}),
    ("tda", {"entropy": "adaptive", "warmup": 5, "ratio": 0.3}),
    ("tda", {"order": "predict-first", **FIFO}),
    ("boostadapter", {"ratio": 0.3, "key": "base"}),
    ("bca", {"ratio": 0.3, "centre_count": 20}),
    ("dmn-zs", {"ratio": 0.3, "size": 4, "order": "predict-first"}),
    ("dpe", {"threshold": 0.3, "order": "learn-first"}),
    ("ecalp", {"size": 15, "images": 4}),
    ("ecalp", {"size": 50, "carry": 0.0, "order": "predict-first"}),
    ("frolic", {"warmup": 10, "order": "predict-first"}),
    ("frolic-released", {"steps": 20, "first": 8, "order": "predict-first"}),
    ("onzeta", {"length": 30}),
    ("tps", {"entropy": "adaptive", "adjust": "after"}),
    ("tpt", {"entropy": "adaptive", "adjust": "before", "steps": 2}),
    ("dynaprompt", {"prompts": 3, "choice": "released", "entropy": "adaptive"}),
    ("mltta", {"adjust": "after", "labels_per_view": 9}),
    ("tent", {"batch": 4, "optimiser": "adam"}),
    ("tent", {"entropy": "adaptive", "estimator": "fixed-point"}),
    ("deyo", {"batch": 3, "entropy": "adaptive", "tau_ent": 1.1, "tau_plpd": -1.0}),
    ("memo", {"entropy": "adaptive", "parameters": "norm", "optimiser": "sgd"}),
    ("bn", {"adjust": "after"}),
]


def cases():
    """Every check on every method; the long ones are quick tests for one of each kind alone."""
    for name in list_methods():
        for check in CHECKS:
            slow = name not in QUICK and check in (checks.check_batches, checks.check_contract)
            marks = [pytest.mark.slow] if slow else []
            yield pytest.param(name, check, marks=marks, id=f"{name}-{check.__name__}")


@pytest.mark.parametrize(("name", "check"), list(cases()))
def test_conformance(name, check):
    check(name)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "options"), OTHERS, ids=str)
def test_conformance_with_other_options(name, options, monkeypatch):
    def create(asked, **more):
        return create_method(asked, **{**(options if asked == name else {}), **more})

    monkeypatch.setattr(checks, "create_method", create)
    for check in (checks.check_batches, checks.check_save_load, checks.check_load_rejects,
                  checks.check_fresh_start, checks.check_merge, checks.check_contract):  # fmt: skip
        check(name)


def limits(cls, prefix=""):
    """Every option with a bound or choices, and a value that it must not have."""
    for f in fields(cls):
        if "part" in f.metadata:
            yield from limits(f.metadata["part"], f"{f.name}.")
        elif (b := f.metadata.get("bounds")) not in (None, NONE):
            low, high = (b.above, b.below) if b.low is b.high is None else (b.low, b.high)
            edge = 0 if (b.low, b.high) == (None, None) else 1
            if low is not None:
                yield prefix + f.name, low - edge
            if high not in (None, math.inf):
                yield prefix + f.name, high + edge
    for o in options_of(cls):
        if choices(o.hint):
            yield o.name, "sideways"


@pytest.mark.parametrize("name", list_methods())
def test_what_no_option_may_be_is_refused_by_name(name):
    refused = list(limits(method_info(name).cls))
    assert refused
    for option, value in refused:
        with pytest.raises(InputError, match=option.rpartition(".")[2]):
            create_method(name, **{option: value})


PUBLISHED = {
    "frolic": {"estimator": "fixed-point", "smoothing": 0, "clip": 0, "eps": 1e-3, "max_iter": 100},
    "frolic-released": {"covariance": 0.1, "steps": 2000, "temperature": 4.0, "rounds": 11},
    "ecalp": {"images": 8, "classes": 3, "power": 10.0, "rounds": 3, "carry": 0.2},
    "onzeta": {"balance": 1.0, "bonus_rate": 20.0, "proxy_rate": 0.5, "proxy_weight": 0.8},
    "adte": {"direction": "paper", "bank": "fifo", "size": 10, "norm": "l1", "place": "after"},
    "adte-released": {"direction": "released", "bank": "gap", "size": 20, "norm": "l2"},
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_defaults_are_those_published(name):
    params = {k.rpartition(".")[2]: v for k, v in create_method(name).params.items()}
    assert params.items() >= PUBLISHED[name].items()


@dataclass(kw_only=True, eq=False)
class Running(Method):
    """Zero-shot that keeps a figure of all answers, and says that it is a sum."""

    way: str = "mean"

    def entries(self):
        return {"figure": Entry(("L",)), "seen": Entry((), torch.int64)}

    def evidence(self, batch):
        return batch.logits[:, 0].double().softmax(-1)

    def look(self, state, image):
        return Prediction(image[0].float())

    def update(self, state, image):
        state["seen"] += 1
        old, new = state["figure"], image[0]
        next_ones = {"sum": old + new, "mean": old + (new - old) / state["seen"], "last": new}
        state["figure"] = next_ones[self.way]


@pytest.mark.parametrize("way", ["sum", "mean", "last"])
def test_what_is_no_sum_is_found(way, monkeypatch):
    monkeypatch.setattr("adte.testing.methods.create_method", lambda name: Running(way=way))
    wrong = pytest.raises(AssertionError, match="'figure' is declared as a sum, but where a")
    with nullcontext() if way == "sum" else wrong:
        check_merge_sums("running")


def test_registry_lists_and_explains():
    assert {"zero-shot", "average", "se", "te", "zero", "adte", "tilt"} <= set(list_methods())
    row = method_info("adte-released").row()
    assert row["stateful"] is True
    assert row["reference"]
    inside = {o["name"]: o for o in row["options"]}
    assert {o["name"]: o["default"] for o in inside["prior"]["options"]}["size"] == 20
    assert inside["entropy"]["default"] == "adaptive"
    plain = [o["name"] for o in method_info("zero-shot").row()["options"]]
    assert plain == ["order", "adjust", "prior"]


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("adtee", {}, "did you mean 'adte'"),
        (None, {}, "unknown method None; choose one of: "),
        (["adte"], {}, r"unknown method \['adte'\]; choose one of"),
        ("adte", {"betta": 0.5}, "did you mean 'beta'"),
        ("adte", {"alpha": 0.9, "beta": 0.1}, "0 < alpha < beta < 1"),
        ("adte", {"beta": 1.0}, "0 < alpha < beta < 1"),
        ("se", {"ratio": 1.5}, r"outside \(0, 1\]"),
        ("se", {"count": 0}, "count=0"),
        ("te", {"q": -1.0}, "must be positive"),
        ("tent", {"batch": 4, "ratio": 0.3}, "there are no views to choose"),
        ("ecalp", {"images": 9, "size": 8}, "images=9"),
        ("frolic", {"item": "mean-logits"}, "mean-logits"),
    ],
)
def test_bad_options_name_the_input_and_the_mend(name, options, message):
    with pytest.raises(InputError, match=message):
        create_method(name, **options)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (lambda p: p, "'Own' gave Tensor for probabilities; it returns Predictions"),
        (lambda p: list(map(Prediction, p)), "gave list for"),
        (lambda p: Predictions(p.numpy()), "gave ndarray for"),
        (lambda p: Predictions(p[:, :2]), r"an array \(1, 2\) for 1 images of 3 classes"),
    ],
    ids=["tensor", "list", "array", "classes"],
)
def test_an_answer_of_another_kind_is_named_and_nothing_is_learned(answer, said):
    @dataclass(kw_only=True, eq=False)
    class Own(Running):
        def decide(self, batch, readouts):
            return answer(batch.logits.softmax(-1).mean(1))

    method, sample = Own(), Sample(torch.zeros(2, 3))
    for call in (method.step, method.predict):
        with pytest.raises(InputError, match=said):
            call(sample)
    assert not method.state_dict()


def test_a_field_that_is_no_option_is_found(monkeypatch):
    """A state of it came back with the default."""
    monkeypatch.setattr("adte.testing.methods.create_method", lambda name: Running(way="last"))
    with pytest.raises(AssertionError, match="field 'way' is no option; declare it as option"):
        checks.check_declared("running")


class Peeking(Method):
    """Zero-shot that counts its images in secret, and reads a class from their names."""

    counts: bool = False
    seen: int = 0

    def decide(self, batch, readouts):
        if self.counts:
            self.seen += len(batch)
            return Predictions(batch.logits[:, 0].float().softmax(-1))
        named = torch.tensor([[float(key.startswith("cat/"))] for key in batch.keys or [""]])
        return Predictions((batch.logits[:, 0].float() * (1 + named)).softmax(-1))


def test_what_is_kept_in_secret_is_found(monkeypatch):
    """A counter that matters after a hundred images passed all checks."""

    def counting(name):
        method = Peeking()
        method.counts = True
        return method

    monkeypatch.setattr("adte.testing.methods.create_method", counting)
    with pytest.raises(AssertionError, match="'seen' is kept of the stream; declare it"):
        check_nothing_hidden("peeking")


def test_an_answer_that_follows_from_a_file_name_is_found(monkeypatch):
    """The folder of an image is its label, where a set is a folder per class."""
    monkeypatch.setattr("adte.testing.methods.create_method", lambda name: Peeking())
    with pytest.raises(AssertionError, match="not equal"):
        check_names_say_nothing("peeking")
    check_nothing_hidden("peeking")


def test_a_method_that_defines_nothing_says_so():
    @dataclass(kw_only=True, eq=False)
    class Nothing(Method):
        pass

    with pytest.raises(NotImplementedError, match="Nothing defines neither look nor decide"):
        Nothing().step(Sample(torch.zeros(2, 3)))


def test_only_a_class_of_methods_is_registered_and_under_a_name():
    with pytest.raises(InputError, match=r"Running.* is no name to register by; write @register"):
        register(Running)
    with pytest.raises(InputError, match="is no class of methods; derive it from adte"):
        register("own")(dict)
    assert "own" not in list_methods()


def test_what_does_not_go_with_the_logits_is_refused():
    """Whether or not a method looks at them."""
    logits, features = torch.zeros(2, 3), torch.ones(2, 4)
    for weights in (torch.ones(5, 4), torch.ones(3, 6), torch.ones(3)):
        with pytest.raises(InputError, match=r"class weights of shape .* = \(3, 4\)"):
            create_method("tda").step(Sample(logits, features, weights))
    for odd in (None, torch.zeros(2, 3, dtype=torch.complex64)):
        with pytest.raises(InputError, match="logits cannot be read as numbers"):
            Sample(odd)


def test_logits_of_a_graph_give_numbers_without_a_warning():
    p = create_method("adte").step(Sample(torch.eye(3).requires_grad_()))
    assert p.probs.requires_grad
    assert 0 < p.confidence < 1


@pytest.mark.parametrize("name", ["tilt", "adte", "tda", "bca", "frolic", "frolic-released",
                                  "onzeta", "dmn-zs", "ecalp", "dpe"])  # fmt: skip
def test_no_state_holds_the_graph_of_its_images(name):
    """Who forgets `no_grad` would keep all images of the stream in memory."""
    text, tower = torch.nn.functional.normalize(torch.randn(5, 16), dim=-1), torch.nn.Linear(16, 16)
    text.requires_grad_()  # as of a text tower that is being trained
    method = create_method(name)
    for _ in range(3):
        features = torch.nn.functional.normalize(tower(torch.randn(4, 16)), dim=-1)
        method.step(Sample(9 * features @ text.T, features, text, 9.0))
        method.learn(Sample(9 * features @ text.T, features, text, 9.0))
    assert not [k for k, v in (method._state or {}).items() if v.requires_grad]
    deepcopy(method)


def test_bad_samples():
    for shape in ((3,), (0, 3), (3, 0), (2, 3, 4)):
        with pytest.raises(InputError, match="views, classes"):
            Sample(torch.zeros(shape))
    with pytest.raises(InputError, match="two-pass"):
        list(predictions(create_method("adte"), iter([Sample(torch.zeros(2, 3))]), "two-pass"))
    with pytest.raises(InputError, match="unknown protocol"):
        list(predictions(create_method("adte"), [], "three-pass"))
    with pytest.raises(InputError, match="'adte' is no method; make one with create_method"):
        run("adte", [])


@pytest.mark.parametrize(("name", "place"), LA)
def test_adjustment_happens_where_it_says(name, place):
    """Each place of the adjustment, composed by hand from the pure functions."""
    stream = SimulatedStream(classes=6, images=30, views=8, dim=16)
    method = create_method(name, adjust=place, tau=0.7)
    assert method.stateful
    for sample, _ in stream:
        method.learn(sample)
    sample = stream[0][0]
    got = method.predict(sample)
    prior = method.class_prior.log_prior.float()
    z = sample.logits[:1] if name == "zero-shot" else sample.logits
    log_p = F.log_probs(z)
    if place == "before":
        log_p = F.adjust(z, prior, 0.7)
    entropy = F.shannon(log_p) if name == "zero-shot" else method.entropy(log_p, prior)
    order = F.rank_views(entropy)
    keep = 1 if name == "zero-shot" else method.keep.number(len(z))
    if place == "per-view":
        log_p = F.adjust(z, prior, 0.7)
    mean = F.mean_probs(log_p[order[:keep]]).exp()
    want = F.vote(log_p, order, keep) if name == "zero" else mean
    if place == "after":
        want = F.adjust(want.clamp_min(1e-38).log(), prior, 0.7).exp()
    torch.testing.assert_close(got.probs, want, rtol=1e-4, atol=1e-6)
    assert got.kept.tolist() == order[:keep].tolist()


@pytest.mark.slow
def test_the_papers_ladder_on_a_stream_of_known_prior():
    """zero-shot < SE < ADTE < ADTE + LA on the simulated long-tailed model."""
    stream = list(SimulatedStream(images=600))
    share = {}
    for title, name, options in (
        ("zero-shot", "zero-shot", {}),
        ("se", "se", {}),
        ("adte", "se", OLD | {"adjust": "none"}),
        ("adte+la", "se", OLD),
    ):
        share[title] = run(create_method(name, **options), stream, "two-pass").correct.mean()
    assert share["zero-shot"] < share["se"] < share["adte"] < share["adte+la"]


def test_among_few_classes_no_class_decides_by_its_q_alone():
    """Two classes, a stream of one of them: the interval of q is narrow, and views sure of the
    class that keeps coming are kept, not those few that are sure of the other.
    """
    g = torch.Generator().manual_seed(0)

    def image() -> Sample:
        z = torch.tensor([4.0, 0.0]) + torch.randn(64, 2, generator=g)
        z[40:] = torch.tensor([0.0, 3.0]) + 0.1 * torch.randn(24, 2, generator=g)
        return Sample(z)

    default = create_method("se", **OLD)
    wide = create_method("se", **OLD | {"few": 0, "smoothing_total": 0.0})
    for _ in range(5):
        p, flipped = default.step(image()), wide.step(image())
    assert p.index == 0
    assert flipped.index == 1  # what the paper's interval does to two classes
    assert float(p.q.max() - p.q.min()) == pytest.approx((0.9 - 0.01) / 20, rel=1e-4)
    many = create_method("se", **OLD)
    for _ in range(2):
        q = many.step(Sample(torch.randn(8, 30, generator=g))).q
    assert float(q.max() - q.min()) == pytest.approx(0.9 - 0.01, rel=1e-4)


@pytest.mark.parametrize("wrong", [None, "100", math.nan, math.inf, torch.ones(2)])
@pytest.mark.parametrize("name", ["scale", "bias"])
def test_the_scale_of_a_context_is_a_number(name, wrong):
    assert Context(torch.eye(2), **{name: torch.tensor(2.0)}).batch(torch.eye(2)[None])
    with pytest.raises(InputError, match=f"{name}=.* of a context is no finite number"):
        Context(torch.eye(2), **{name: wrong})


def test_batches_and_contexts_of_arrays_and_lists():
    rng = np.random.default_rng(0)
    features, text = rng.normal(size=(6, 4, 16)), rng.normal(size=(5, 16))
    text /= np.linalg.norm(text, axis=-1, keepdims=True)
    context = Context(text, 10.0)
    batch = context.batch(features, keys=list("abcdef"))
    want = Context(torch.tensor(text), 10.0).batch(torch.tensor(features))
    assert torch.equal(batch.logits, want.logits)
    made = Batch(batch.logits.tolist(), batch.features.numpy(), context=context)
    got = create_method("tda").step(made).probs
    torch.testing.assert_close(got, create_method("tda").step(want).probs)
    assert batch[np.int64(2)].keys == ("c",)
    assert batch[-1].keys == ("f",)
    with pytest.raises(IndexError, match="image 6 of a batch of 6"):
        batch[6]
    assert Batch.join([batch, want]).keys == ()


def test_what_should_be_of_unit_length_and_is_not_is_refused_before_anything_is_learned():
    """Raw text features gave answers that were all but certain, without a word."""
    method, unit = create_method("tda"), torch.eye(3, 8)
    for weights, features, said in (
        (
            22 * unit,
            unit[None, :2],
            "class weights of lengths 22 to 22 are no unit vectors; divide",
        ),
        (
            unit,
            3 * unit[None, :2],
            "features of lengths 3 to 3 are no unit vectors; divide each by",
        ),
    ):
        logits = torch.zeros(1, 2, 3)
        with pytest.raises(InputError, match=said):
            method.step(Batch(logits, features, context=Context(weights, 100.0)))
        assert not method.state_dict()
        method.predict(Batch(logits, features, context=Context(weights, 100.0, unit=False)))


@pytest.mark.parametrize("keys", ["ab", ("a",), ("a", "b", "c")])
def test_keys_that_do_not_name_each_image_are_refused_before_anything_is_learned(keys):
    with pytest.raises(InputError, match=r"do not name 2 images; give a name for every one, or no"):
        Batch(torch.zeros(2, 3, 4), keys=keys)


def test_features_that_do_not_go_with_class_weights():
    with pytest.raises(InputError, match=r"without class weights.*pass Context\(class_weights, sc"):
        Context().batch(torch.zeros(2, 4, 16))
    for shape in ((4, 16), (2, 4, 8)):
        with pytest.raises(InputError, match=r"features of shape .* of shape \(5, 16\); pass"):
            Context(torch.zeros(5, 16)).batch(torch.zeros(shape))
    with pytest.raises(InputError, match=r"class weights of shape \(16,\)"):
        Context(torch.zeros(16)).batch(torch.zeros(2, 4, 16))


def test_a_slice_of_predictions_is_predictions():
    found = create_method("adte").step(Batch(torch.randn(5, 4, 3)))
    assert [p.to_dict() for p in found[1:3]] == [p.to_dict() for p in found][1:3]
    assert [p.prior is None for p in found[:2]] == [True, False]


def test_only_a_method_is_merged():
    with pytest.raises(StateError, match="cannot merge the state of 'int' into 'adte'"):
        create_method("adte").merge(3)


def test_a_start_of_other_classes_is_not_taken_out():
    one, two, start = (create_method("tilt") for _ in range(3))
    for method, classes in ((one, 5), (two, 5), (start, 6)):
        method.learn(Batch(torch.randn(2, 3, classes)))
    with pytest.raises(StateError, match=r"is \(5,\) here and \(6,\) there"):
        one.merge(two, start)
