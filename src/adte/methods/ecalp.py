"""ECALP: labels that spread over a graph of classes and images, which grows with the stream."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from adte.core import functional as F
from adte.core.batch import Batch
from adte.core.errors import InputError, StateError
from adte.core.options import option
from adte.core.prediction import Prediction
from adte.core.state import Entry, State
from adte.methods._features import base_alone, class_weights_of, features_of
from adte.methods.base import ORDER, Method
from adte.methods.registry import register

__all__ = ["ECALP", "Graph"]

CHUNK = 256  # rows of similarities at a time


class Lists(NamedTuple):
    """The nearest images and classes of n images: similarities and indices, nearest first."""

    near: Tensor  # (n, K)
    to: Tensor  # (n, K)
    class_near: Tensor  # (n, C)
    class_to: Tensor  # (n, C)


class Graph(NamedTuple):
    """Edges between n images, both ways and sorted by row, and from images to classes."""

    first: Tensor  # (n,) the first edge of every row
    to: Tensor  # (E,)
    weight: Tensor  # (E,)
    class_to: Tensor  # (n, C)
    class_weight: Tensor  # (n, C)

    @staticmethod
    def of(lists: Lists, power: float, classes: int) -> Graph:
        """W = A + Aᵀ over similarities to a power, divided by the roots of both ends' degrees."""
        n, k = lists.near.shape
        a, t = lists.near**power, lists.class_near**power
        rows = torch.arange(n, device=a.device).repeat_interleave(k)
        rows, to = torch.cat([rows, lists.to.flatten()]), torch.cat([lists.to.flatten(), rows])
        weight = a.flatten().repeat(2)
        rows, order = rows.sort(stable=True)
        to, weight = to[order], weight[order]
        first = torch.searchsorted(rows, torch.arange(n, device=a.device))
        degree = embedding_bag(to, a.new_ones(n, 1), first, per_sample_weights=weight, mode="sum")
        root = 1 / ((degree[:, 0] + t.sum(1)).sqrt() + 1e-6)
        class_degree = a.new_zeros(classes).index_add(0, lists.class_to.flatten(), t.flatten())
        class_root = 1 / (class_degree.sqrt() + 1e-6)
        weight = weight * root[rows] * root[to]
        return Graph(
            first, to, weight, lists.class_to, t * root[:, None] * class_root[lists.class_to]
        )

    def spread(self, x: Tensor) -> Tensor:
        """W x among the images.  (n, X) → (n, X)"""
        return embedding_bag(self.to, x, self.first, per_sample_weights=self.weight, mode="sum")


@register("ecalp")
@dataclass(kw_only=True, eq=False)
class ECALP(Method):
    """Label propagation over a graph of classes and latest images, each linked to its nearest.

    Nodes are the classes, whose labels are fixed, and images, by their base view x (further views
    are not looked at).
    1. An image has an edge to its 8 nearest images, itself included, and to its 3 nearest classes,
       by similarity to the power 10; below zero there is none. To a class it is the cosine; between
       images Σ w_d x_d x'_d/‖w∘x‖, w being the variance of the class weights in every dimension,
       x the older of the two.
    2. W = A + Aᵀ, each edge over the roots of the degrees of its ends.
    3. Three times Y ← W Y for the images; out is the image's row of Y, made to sum to one.

    Constants are those of the authors' code, the same for all data sets; its α = 1 leaves nothing
    of the paper's term (1 − α)·Y⁰. Two things that the code does beyond the paper's iteration are
    done here too. A predicted image is in the graph twice, as the node that stays and as the copy
    that is asked; here because it is learned from first. And Y starts with a fifth of the last
    score of every image, at its top class: `carry`. With 0 it starts from nothing, as the iteration
    is written, and is much faster. Two things differ. The code's softmax(10⁴·Y) hangs on the size
    of Y; the top class is the same. And it raises similarities below zero to an even power.

    The code keeps every image. Here the latest 2,000 stay (`size`), so the state has a bound that
    no number of classes changes; the graph is always that of the images kept. `merge` keeps the
    latest of both streams, theirs after ours, and makes the graph anew.

    >>> from adte import Sample
    >>> weights = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.8, 0.6]])
    >>> x = torch.nn.functional.normalize(torch.tensor([[1.0, 0.2]]), dim=-1)
    >>> ECALP().step(Sample(10 * x @ weights.T, x, weights, 10.0)).probs.round(decimals=3)
    tensor([0.6030, 0.0000, 0.3970])
    """

    needs = frozenset({"logits", "features", "class weights"})
    reference = (
        "Li et al., Efficient and Context-Aware Label Propagation for Zero-/Few-Shot "
        "Training-Free Adaptation of Vision-Language Model, ICLR 2025, arXiv:2412.18303, "
        "github.com/Yushu-Li/ECALP"
    )

    order: Literal["predict-first", "learn-first"] = option("learn-first", ORDER)
    size: int = option(2000, "images that the graph keeps: the latest ones", low=1)
    images: int = option(8, "edges of an image to its nearest images, itself included", low=1)
    classes: int = option(3, "edges of an image to its nearest classes", low=1)
    power: float = option(10.0, "γ, power to which similarities are raised", above=0)
    rounds: int = option(3, "rounds of label propagation", low=1)
    carry: float = option(
        0.2,
        "share of its last top score that an image starts with; 0 starts from nothing",
        low=0,
        high=1,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.images > self.size:
            raise InputError(
                f"images={self.images} is more than the size={self.size} kept; choose fewer"
            )

    # ------------------------------------------------------------------ state

    def entries(self) -> dict[str, Entry]:
        n = self.size

        def kept(shape: tuple[int | str, ...], dtype: torch.dtype) -> Entry:
            return Entry((1, n, *shape), dtype, "trim", by="rank")

        labels = {"label": kept((), torch.int64), "score": kept((), torch.float32)}
        return {
            "seen": Entry((), torch.int64),
            "channels": Entry(("D",), torch.float32, "same"),  # w, of mean 1
            "rank": Entry((1, n), torch.float64, "trim", fill=torch.inf, by="rank", shift="seen"),
            "features": kept(("D",), torch.float32),
            "norm": kept((), torch.float32),  # ‖w∘x‖
            "class_near": kept((self.classes,), torch.float32),
            "class_to": kept((self.classes,), torch.int64),
            "near": Entry((n, self.images), torch.float32, _void),
            "to": Entry((n, self.images), torch.int64, _void),
            "names": Entry(("L",), torch.float32, "same"),  # Σ_d of class weights, to know them by
        } | (labels if self.carry else {})

    def initial(self, batch: Batch) -> State:
        weights = class_weights_of(batch).detach()
        state = super().initial(batch)
        state["names"].copy_(weights.sum(1))
        w = weights.var(0, correction=0)
        state["channels"].copy_(w / w.mean() if float(w.mean()) > 0 else torch.ones_like(w))
        return state

    def check_state(self, state: State) -> None:
        classes = len(state["names"])
        for name, end in (("to", self.size), ("class_to", classes), ("label", classes)):
            if name in state and not 0 <= int(state[name].min()) <= int(state[name].max()) < end:
                raise StateError(
                    f"state of {self.name!r} does not fit: entry {name!r} points beyond {end}; "
                    "save it again"
                )

    def refresh(self, state: State) -> None:
        """Make the graph anew where a merge has left none."""
        n = self._count(state)
        if n and not bool(state["near"].any()):
            for start in range(0, n, CHUNK):
                rows = torch.arange(start, min(start + CHUNK, n), device=state["near"].device)
                self._find(state, rows)

    # ------------------------------------------------------------------ the graph

    def _count(self, state: State) -> int:
        """Images kept; they fill the slots from the first on."""
        return min(int(state["seen"]), self.size)

    def _find(self, state: State, rows: Tensor) -> None:
        """Look for the nearest images of some slots among all, in place."""
        n, x, norm = self._count(state), state["features"][0], state["norm"][0]
        dots = (x[rows] * state["channels"]) @ x[:n].T
        older = state["rank"][0, rows, None] > state["rank"][0, None, :n]
        near = (dots / torch.where(older, norm[rows, None], norm[None, :n])).clamp_min(0)
        near, to = near.sort(dim=1, descending=True, stable=True)
        k = min(n, self.images)
        state["near"][rows, :k], state["to"][rows, :k] = near[:, :k], to[:, :k]

    def _likeness(self, state: State, x: Tensor) -> Tensor:
        """Similarity of the kept images to one that is not older.  → (n,)"""
        n = self._count(state)
        dots = state["features"][0, :n] @ (state["channels"] * x)
        return (dots / state["norm"][0, :n]).clamp_min(0)

    def _names(self, image: Batch) -> tuple[Tensor, Tensor]:
        """The nearest classes: similarities and indices, (C,) each."""
        cosine = (class_weights_of(image) @ features_of(image)[0, 0]).float().clamp_min(0)
        near, to = cosine.sort(descending=True, stable=True)
        return _first(near, self.classes), _first(to, self.classes)

    def _with(self, state: State, x: Tensor, names: tuple[Tensor, Tensor]) -> Lists:
        """The lists of the kept images and, as the last, of an image that is not kept."""
        n, wx = self._count(state), state["channels"] * x
        likeness = self._likeness(state, x)
        near, to = _offered(state["near"][:n], state["to"][:n], likeness, n)
        itself = (wx @ x / _length(wx))[None]
        own, own_to = torch.cat([likeness, itself]).sort(descending=True, stable=True)
        return Lists(
            torch.cat([near, _first(own, self.images)[None]]),
            torch.cat([to, _first(own_to, self.images)[None]]),
            torch.cat([state["class_near"][0, :n], names[0][None]]),
            torch.cat([state["class_to"][0, :n], names[1][None]]),
        )

    # ------------------------------------------------------------------ one image

    def look(self, state: State, image: Batch) -> Prediction:
        n = self._count(state)
        lists = self._with(state, features_of(image)[0, 0].float(), self._names(image))
        graph = Graph.of(lists, self.power, image.classes)
        # W is symmetric: the image's row of WᵗY is (Wᵗe)ᵀY, with e the image.
        reach = torch.zeros_like(lists.near[:, :1])
        reach[n] = 1.0
        total = torch.zeros_like(reach)
        for _ in range(self.rounds):
            total += reach
            reach = graph.spread(reach)
        y = total.new_zeros(image.classes)
        y.index_add_(0, graph.class_to.flatten(), (total * graph.class_weight).flatten())
        if self.carry:
            y.index_add_(0, state["label"][0, :n], reach[:n, 0] * state["score"][0, :n])
        mass = y.sum()  # 0 where no class lies on this side of the sphere
        plain = F.log_probs(image.logits[0, 0]).exp()
        out = torch.where(mass > 0, (y / mass).to(plain), plain)
        return Prediction(probs=out, kept=base_alone(out))

    def update(self, state: State, image: Batch) -> None:
        self._carry(state)
        x, names = features_of(image)[0, 0].float(), self._names(image)
        slot = int(state["rank"].argmax())  # the first that is empty, or the oldest
        n = self._count(state)
        lost = (state["to"][:n] == slot).any(1) if slot < n else None
        state["seen"] += 1
        values = {
            "rank": -state["seen"].double(),
            "features": x,
            "norm": _length(state["channels"] * x),
            "class_near": names[0],
            "class_to": names[1],
        }
        if self.carry:
            values |= {"label": torch.tensor(0), "score": torch.tensor(0.0)}
        for name, value in values.items():
            state[name][0, slot] = value
        n = self._count(state)
        likeness = self._likeness(state, x)
        near, to = _offered(state["near"][:n], state["to"][:n], likeness, slot)
        own, own_to = likeness.sort(descending=True, stable=True)
        near[slot], to[slot] = _first(own, self.images), _first(own_to, self.images)
        state["near"][:n], state["to"][:n] = near, to
        if lost is not None:
            lost[slot] = False
            self._find(state, lost.nonzero()[:, 0])

    def _carry(self, state: State) -> None:
        """Give every image the label that the last image's graph gave it, to start from.

        It is done when the next image comes, so that the last one was predicted before.
        """
        n = self._count(state)
        if not self.carry or not n:
            return
        last = int(state["rank"][0, :n].argmin())
        names = (state["class_near"][0, last], state["class_to"][0, last])
        lists = self._with(state, state["features"][0, last], names)
        classes = len(state["names"])
        graph = Graph.of(lists, self.power, classes)
        y = lists.near.new_zeros(n + 1, classes)
        fixed = y.scatter_add(1, graph.class_to, graph.class_weight)
        y[:n].scatter_(1, state["label"][0, :n, None], state["score"][0, :n, None])
        for _ in range(self.rounds):
            y = fixed + graph.spread(y)
        score, label = y[:n].max(1)
        state["score"][0, :n], state["label"][0, :n] = self.carry * score, label


def _offered(near: Tensor, to: Tensor, likeness: Tensor, slot: int) -> tuple[Tensor, Tensor]:
    """Lists (n, K) of nearest images after one more, of a likeness (n,) to each, was offered."""
    k = near.shape[1]
    near = torch.cat([near, likeness[:, None]], 1)
    to = torch.cat([to, torch.full_like(to[:, :1], slot)], 1)
    near, order = near.sort(dim=1, descending=True, stable=True)
    return near[:, :k], to.gather(1, order)[:, :k]


def _first(x: Tensor, k: int) -> Tensor:
    """The first k, zeros where there are fewer.  → (k,)"""
    return torch.nn.functional.pad(x[:k], (0, max(0, k - len(x))))


def _length(x: Tensor) -> Tensor:
    """‖x‖, not zero where no channel that tells the classes apart is lit."""
    out: Tensor = x.norm().clamp_min(1e-12)
    return out


def _void(name: str, ours: State, theirs: State) -> Tensor:
    """No edges: `refresh` finds them anew."""
    return torch.zeros_like(ours[name])
