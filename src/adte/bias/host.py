"""The joint estimate on the host: NumPy, float64, image after image.

Vectors of L numbers are short: that is quicker here than asking an accelerator, or PyTorch, for
each. Where features lie on a device and classes are many, `adte.bias.device` does the same there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "Joint", "Sums", "begun", "by_chance", "concentration", "elsewhere", "frequencies", "joint",
    "redescending", "softmax", "sureness", "take_in",
]  # fmt: skip

Array = NDArray[np.float64]
X = TypeVar("X", float, "Tensor")

PAIRS = 2.0  # pairs that agree as chance has it, taken as seen before the first image
LEAST, MOST = 0.05, 1e3  # images per class that the frequencies are smoothed by
SURE = 2.0  # times the trust, how far what stands out is taken for a class that is repeated
SHARE = 2.0  # times its equal share, what a class counts for at most where that is chosen
DEEP = -40.0  # a log-probability below says no more than this
STEPS = 2  # towards the slope: the first is of what uniform predictions have flattened
FEW = 40.0  # classes whose slope is believed by half
NAMES = 20.0  # classes among which it is believed by half that answers are unsure of all alike
VAGUE = 1e-3  # of certain answers, what an image is taken to agree with itself at least
KINDS = 25.0  # of images, at which it is half believed that what all say is the model's
MANY = 100.0  # kinds that a stream is taken to show before the first image, if it has as many
OTHERS = 0.25  # of all images, those that are of other classes at least
TILTS = 40  # of Newton's steps and halvings at most; seldom more than five
UNSURE = 5.0  # images that said nothing, taken as seen when it is counted how sure answers are
TINY = 1e-300


class Sums(NamedTuple):
    """What is kept of a stream: sums over its images, (L,) each.

    Attributes:
        total: M, of the predictions p; answers: N, of the answers r; squares: Q, of r².
        labels: how many images had each class for their most probable one.
        logs: G, of log p.
    """

    total: Array
    answers: Array
    squares: Array
    labels: Array
    logs: Array


class Joint(NamedTuple):
    """What is known by then: the model's bias, the frequencies as far as trusted, the trust, and
    how sure answers are."""

    bias: Array  # (L,)
    shown: Array  # (L,)
    trust: float
    sure: float


def redescending(x: Array, deviations: float, trust: float = 1.0) -> Array:
    """x about its median, as far as it may pass for bias.  (L,) → (L,)

    In robust deviations u from the median (1.4826 times the median distance): u itself up to
    `deviations` k either side; −k below; above k it goes back to zero, max(0, 2k − u). What stands
    out upwards is no bias but a class that the stream repeats: in full where frequencies are
    trusted by half or more, by less where less, for where they are equal it is the model's after
    all. 0 deviations cut nothing.

    >>> redescending(np.array([-8.0, -1.0, 0.0, 1.0, 5.0]), 2.0)
    array([-2.9652, -1.    ,  0.    ,  1.    ,  0.9304])
    """
    x, full = x - _median(x), min(1.0, SURE * trust)
    if not deviations or not full:
        return x
    reach = deviations * 1.4826 * _median(np.abs(x))
    cut = np.maximum(np.minimum(x, np.maximum(2 * reach - x, 0)), -reach)
    return cut if full == 1 else x + full * (cut - x)


def _median(x: Array) -> float:
    """As np.median, without its checks; to sort is quicker than to part at two places."""
    x = np.sort(x)
    return float(x[(len(x) - 1) // 2] + x[len(x) // 2]) / 2


def concentration(sums: Sums, known: float = 0.0) -> float:
    """How much more often two images share a class than they would at equal frequencies.

    With r the class probabilities of an image, images i and j agree with probability r_i·r_j. Over
    all pairs of n images that makes ½ (Σ N_l² − Σ Q_l) agreements, from N = Σ r and Q = Σ r² alone,
    and n = Σ N_l; chance makes ½ n (n − 1) times `by_chance`, 1/L for a model that has no bias.
    With two pairs that agree as chance has it taken as seen, what is beyond their ratio of one is
    an excess.

    Unsure answers hide it: two images of one class agree no more often than two draws of one
    image's answer, s = Σ Q_l/n, which is beyond chance by a = (L s − 1)/(L − 1) of what it would be
    were answers certain. So the excess is divided by a: what comes out is L Σ π², one over the
    share of the classes in use. Among many names answers are unsure between like ones, on which
    two images agree as well; so it is a to the power of 2^(−L/20).

    Args:
        known: how far the bias is known (`joint`): then none has to be looked for, nor frequencies
            behind unsure answers.

    >>> def told(answers):
    ...     n, q, logs = answers.sum(0), (answers**2).sum(0), np.log(answers).sum(0)
    ...     return round(concentration(Sums(n, n, q, n, logs)), 4)
    >>> two = np.array([[0.97, 0.01, 0.01, 0.01], [0.01, 0.97, 0.01, 0.01]])
    >>> told(np.tile(two, (10, 1)))  # 20 images of two classes in four
    1.8496
    >>> told(np.tile(two / 2 + 0.125, (10, 1)))  # such, in doubt
    1.71
    """
    return _count(sums, known)[0]


class _Count(NamedTuple):
    c: float
    itself: float
    chance: float


def _count(sums: Sums, known: float) -> _Count:
    """The concentration, and by what it was counted."""
    answers, squares = sums.answers, sums.squares
    n, same, classes = float(answers.sum()), float(squares.sum()), len(answers)
    agreed, itself = float(answers @ answers) - same, _itself(same, n, classes, known)
    chance = 1 / classes
    c = _concentration(agreed, n, itself, classes, chance)
    if c > 1:
        chance = by_chance(sums, known)
        c = _concentration(agreed, n, itself, classes, chance)
    return _Count(c, itself, chance)


def _concentration(agreed: float, n: float, itself: float, classes: int, chance: float) -> float:
    """Of pairs that agree, counted twice, as those of chance are."""
    ratio = (agreed + 2 * PAIRS) / (max(n * (n - 1), 0.0) * chance + 2 * PAIRS)
    return min(1 + (ratio - 1) / itself, float(classes)) if ratio > 1 else ratio


def _itself(same: float, n: float, classes: int, known: float = 0.0) -> float:
    """How often images agree with themselves beyond chance, as far as that is regarded: a."""
    sure = same / max(n, TINY)
    beyond = (classes * sure - 1) / max(classes - 1, 1)
    return float(max(beyond, VAGUE) ** ((1 - known) * 2 ** (-classes / NAMES)))


def by_chance(sums: Sums, known: float = 0.0) -> float:
    """How often two images agree at equal frequencies, by what the model favours: Σ t².

    A class that is frequent is probable in its own images; one that the model favours is so in all
    of them. So what images say of classes that they are not of, u (`elsewhere`), tells how uneven
    the model alone would make the answers: t_l ∝ exp(θ u_l), with the θ from 0 to 1 at which
    Σ t u is what it is over the answers, Σ N u/n. If that is no more than the mean of u, θ is 0,
    and two images agree by chance once in L.

    Images of one kind raise what is like it (all dogs say of each other that they may be dogs). So
    θ counts by K³/(K³ + 25³), K the number of kinds by which as many pairs would agree; before
    the first image, that of all classes, or a hundred.

    >>> rng = np.random.default_rng(0)
    >>> def told(z):
    ...     p = np.exp(z) / np.exp(z).sum(1, keepdims=True)
    ...     n, q, logs = p.sum(0), (p**2).sum(0), np.log(p).sum(0)
    ...     return round(400 * by_chance(Sums(n, n, q, n, logs)), 1)
    >>> z = rng.normal(size=(300, 400))
    >>> told(z + 6 * np.eye(400)[np.arange(300) % 40])  # a tenth of the classes is shown
    1.1
    >>> told(z + 6 * np.eye(400)[np.arange(300)] + 3 * (np.arange(400) < 40))  # or favoured
    3.6
    """
    answers = sums.answers
    n, agreed = float(answers.sum()), float(answers @ answers - sums.squares.sum())
    if not n:
        return 1 / len(answers)
    u = elsewhere(sums)
    theta = _tilt(u, float(answers @ u) / n)
    t = np.exp(theta * (1 - known) * _of_many_kinds(agreed, n, len(u)) * u)
    return float(t @ t) / float(t.sum()) ** 2


def _of_many_kinds(agreed: float, n: float, classes: int) -> float:
    """K³/(K³ + 25³), with two pairs taken as seen that agree as those of 100 kinds do."""
    kinds = (max(n * (n - 1), 0.0) + 2 * PAIRS * min(classes, MANY)) / (agreed + 2 * PAIRS)
    return float(1 - 1 / (1 + (kinds / KINDS) ** 3))


def _tilt(u: Array, goal: float) -> float:
    """The θ from 0 to 1 at which the mean of u (L,), weighed by exp(θ u), is the goal.

    Newton's steps, between what is known to be too little and too much.
    """
    squares, low, high = u * u, 0.0, 1.0
    theta = 0.0 if goal <= float(u.mean()) else 1.0
    for _ in range(TILTS if theta else 0):
        t = np.exp(theta * u)
        whole = float(t.sum())
        mean = float(t @ u) / whole
        spread = max(float(t @ squares) / whole - mean * mean, TINY)
        if mean <= goal and theta == 1:
            break
        low, high = (theta, high) if mean <= goal else (low, theta)
        before, theta = theta, theta + (goal - mean) / spread
        theta = theta if low < theta < high else (low + high) / 2
        if abs(theta - before) < 1e-12:
            break
    return theta


def elsewhere(sums: Sums) -> Array:
    """What images say of classes that they are not of: about the mean of their log p.  → (L,)

    N²/Q images are of a class: so many have these N and Q if each answers the same, and that is
    Q/N, which stands for what they predict. What is left of G is of the others, who are taken to
    be a quarter of all images at least, those included that a stream was begun with.
    """
    whole = float(sums.total.sum())
    says = (sums.squares + TINY) / (sums.answers + TINY)
    own = sums.answers / says
    left = sums.logs - own * np.maximum(np.log(says), DEEP)
    return np.minimum(left / np.maximum(whole - own, max(OTHERS * whole, TINY)), 0.0)


def frequencies(sums: Sums, known: float = 0.0) -> tuple[Array, float]:
    """log(L π̂) of each class, and the trust g in it.  → (L,)

    The trust is the share of agreements that chance does not explain, g = 1 − 1/c: nothing on a
    stream of equally frequent classes, nearly all of it where 40 of 1,000 are shown.

    π̂ is the mean of the Dirichlet posterior, (N + α)/(n + L α), whose α has a concentration that
    was counted: c' = L (1 + α)/(1 + L α). Two classes that half of the stream is of say nothing
    of how rare the others are, so in c' no class counts for more than twice its equal share.

    Args:
        known: how far the bias is known (`joint`).
    """
    answers, squares, classes = sums.answers, sums.squares, len(sums.answers)
    c, itself, chance = _count(sums, known)
    if c <= 1:
        return np.zeros_like(answers), 0.0
    each = float(answers.sum()) / classes
    held = np.minimum(answers, SHARE * max(each, 1.0))
    part = held / np.maximum(answers, TINY)
    agreed = float(held @ held - (part * part) @ squares)
    rest = _concentration(agreed, float(held.sum()), itself, classes, chance)
    alpha = (1 - rest / classes) / (rest - 1) if rest > 1 else MOST
    alpha = min(max(alpha, LEAST), MOST)
    return np.log((answers + alpha) / (each + alpha)), 1 - 1 / c


def joint(
    sums: Sums, smoothing: tuple[float, float] = (1.0, 20.0), deviations: float = 2.0
) -> Joint:
    """The model's bias b, and the stream's frequencies f as far as trusted.  (L,) each

        f = t·log(L π̂),    b = redescending(log(M + e·s) − h·log((N + e)/(n/L + e)), g)

    What could be either is split evenly: t = g, and h = g/2, half of what is trusted of the
    frequencies, is taken out of what may be bias.

    A stream that was begun with the bias of others (`begun`) has more predictions in M than the
    images that it showed. As far as M is of those, w = (1 − n/Σ M)² of all pairs, the bias is known
    and what is uneven beside it is the stream's: t = g + w (1 − g), h = g (1 + w)/2.

    Where a class was hardly seen, M says nothing of it, but every image says something: its log p,
    low as it is. So the predictions e that are added to M are not uniform. They have the shape of
    the geometric mean, s ∝ exp(κ G), mean one, as far as it goes with what M shows: κ is the slope
    of that on G over the classes, none if it is negative; times L/(L + 40), for few classes are
    little evidence of a slope; and times 1 − g, for images of one kind raise all classes like it.

    Args:
        smoothing: predictions e that are added: so many per class, and at least so many in all. A
            stream that shows one in c of its classes takes c times the images to say as much of a
            bias, so the first is multiplied by c.
    """
    n = float(sums.answers.sum())
    known = _begun_with(sums.total, n)
    log_pi, trust = frequencies(sums, known)
    each = n / len(log_pi)
    extra = max(smoothing[0] / (1 - trust), smoothing[1] / len(log_pi))
    part = trust * (1 + known) / 2
    answered = np.maximum(sums.answers + extra, TINY)
    told = part * np.log(answered / (each + extra)) if trust else 0.0
    uneven = np.log(np.maximum(sums.total + extra, TINY)) - told
    logs = sums.logs - sums.logs.sum() / len(log_pi)
    length, believed = float(logs @ logs), (1 - trust) * len(logs) / (len(logs) + FEW)
    low = logs - logs.max()
    for _ in range(STEPS if length else 0):
        x = uneven - uneven.mean()  # or what rounding leaves of a mean of logs would be a slope
        slope = believed * max(0.0, float(x @ logs) / length)
        added = np.exp(slope * low)
        added *= extra * len(logs) / added.sum()
        uneven = np.log(np.maximum(sums.total + added, TINY)) - told
    sure = sureness(float(sums.squares.sum()), n)
    shown = (trust + known * (1 - trust)) * log_pi
    return Joint(redescending(uneven, deviations, trust), shown, trust, sure)


def _begun_with(total: Array, n: float) -> float:
    """How far the bias was known before the first of n images came: w = (1 − n/Σ M)².

    >>> _begun_with(np.array([10.0, 30.0]), 10)
    0.5625
    """
    whole = float(total.sum())
    return max(0.0, 1 - n / whole) ** 2 if whole else 0.0


def sureness(squares: X, n: X) -> X:
    """How often two draws of one image's answer agree, s: Σ r² on average, of n images and five
    that said nothing.

    `squares` is the sum over the n. One where answers are certain; of those that say what they
    mean it is about the share that is right.
    """
    return squares / (n + UNSURE)


def take_in(sums: Sums, log_p: Array, p: Array, bias: Array, shown: Array) -> Array:
    """Add an image that was predicted p (L,), by the b and f of its time, in place; its answer.

    Its label is the top of p·exp(f − b). Its answer, r ∝ p·exp(½ f − b), counts with half of f, or
    a stream that comes class by class would persuade itself that it shows one alone.
    """
    z = log_p - bias
    answer = softmax(z + shown / 2)
    for into, what in zip(sums, (p, answer, answer * answer), strict=False):
        into += what
    sums.labels[(z + shown).argmax()] += 1
    np.add(sums.logs, np.maximum(log_p, DEEP), out=sums.logs)
    return answer


def begun(
    sums: Sums, smoothing: tuple[float, float] = (1.0, 20.0), deviations: float = 2.0
) -> Sums:
    """What another stream begins with: the bias, as so many predictions, and no frequencies."""
    if not sums.answers.any():
        return sums
    none = np.zeros_like(sums.answers)
    total = sums.total.sum() * softmax(joint(sums, smoothing, deviations).bias)
    return Sums(total, none, none.copy(), none.copy(), sums.logs)


def softmax(x: Array) -> Array:
    """(L,) → (L,)"""
    e = np.exp(x - x.max())
    return np.asarray(e / e.sum())
