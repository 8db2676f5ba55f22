# mypy: disable-error-code="no-untyped-def,no-untyped-call"
"""The joint estimate where the features lie: the numbers of `adte.bias.host`, by one Triton kernel.

One program follows the stream image by image, so that nobody asks the device for a number, and a
tower beside it has all of the GPU but a corner. A thread always has the same classes, so passes
over them need no barrier. A median is found by counting, in a few passes.
"""

# Triton reads the annotations of kernels: they are no strings here.
import math
from contextlib import nullcontext

import torch
import triton  # type: ignore[import-not-found,import-untyped,unused-ignore]
import triton.language as tl  # type: ignore[import-not-found,import-untyped,unused-ignore]
from torch import Tensor

from adte.bias.host import (
    DEEP,
    FEW,
    KINDS,
    LEAST,
    MANY,
    MOST,
    NAMES,
    OTHERS,
    PAIRS,
    SHARE,
    STEPS,
    SURE,
    TILTS,
    VAGUE,
)

__all__ = ["follow"]

_PAIRS, _LEAST, _MOST = tl.constexpr(PAIRS), tl.constexpr(LEAST), tl.constexpr(MOST)
_DEEP, _FEW, _STEPS = tl.constexpr(DEEP), tl.constexpr(FEW), tl.constexpr(STEPS)
_SHARE, _SURE, _VAGUE = tl.constexpr(SHARE), tl.constexpr(SURE), tl.constexpr(VAGUE)
_KINDS, _OTHERS, _TILTS = tl.constexpr(KINDS), tl.constexpr(OTHERS), tl.constexpr(TILTS)
_MANY = tl.constexpr(MANY)
_HALVED = tl.constexpr(math.log(2) / NAMES)
_TOP = tl.constexpr((1 << 63) - 1)


def follow(
    sums: Tensor, items: Tensor, smoothing: tuple[float, float], deviations: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Take in log-probabilities (B, L) in order; `sums` (5, L), as the fields of `Sums`, in place.

    Returns what was known before each image and after the last, (B + 1, L) each: the bias, the
    frequencies as far as trusted, the sum of predictions; and the trust (B + 1,). All in float64.
    """
    images, classes = items.shape
    bias, shown, totals = items.new_empty(3, images + 1, classes)
    trust = items.new_empty(images + 1)
    block = max(64, min(4096, triton.next_power_of_2(classes)))
    with torch.cuda.device(items.device) if items.is_cuda else nullcontext():
        _follow[(1,)](
            sums, items.contiguous(), bias, shown, totals, trust, images, classes,
            *smoothing, deviations, BLOCK=block, num_warps=max(2, min(32, block // 64)),
        )  # fmt: skip
    return bias, shown, totals, trust


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _follow(
    sums, items, biases, frequencies, totals, trusts, images, classes, each_class, in_all,
    deviations, BLOCK: tl.constexpr,
):  # fmt: skip
    L = tl.full((), 1.0, tl.float64) * classes
    counts, predictions = tl.zeros((BLOCK,), tl.float64), tl.zeros((BLOCK,), tl.float64)
    for start in range(0, classes, BLOCK):
        at, inside = _some(start, classes, BLOCK)
        predictions += tl.load(sums + at, mask=inside, other=0.0)
        counts += tl.load(sums + classes + at, mask=inside, other=0.0)
    before, predicted_before = tl.sum(counts, 0), tl.sum(predictions, 0)
    begun_with = tl.maximum(predicted_before - before, 0.0)
    for b in range(0, images + 1):
        bias, shown, total = biases + b * classes, frequencies + b * classes, totals + b * classes
        n = before + b
        each = n / L

        agree, agree_rest = tl.zeros((BLOCK,), tl.float64), tl.zeros((BLOCK,), tl.float64)
        counts, alone = tl.zeros((BLOCK,), tl.float64), tl.zeros((BLOCK,), tl.float64)
        for start in range(0, classes, BLOCK):
            at, inside = _some(start, classes, BLOCK)
            answers = tl.load(sums + classes + at, mask=inside, other=0.0)
            squares = tl.load(sums + 2 * classes + at, mask=inside, other=0.0)
            most = _SHARE * tl.maximum(each, 1.0)
            part = tl.minimum(1.0, most / tl.maximum(answers, 1e-300))
            agree += answers * answers - squares
            agree_rest += part * part * (answers * answers - squares)
            counts += part * answers
            alone += squares
        known = begun_with / tl.maximum(begun_with + n, 1e-300)
        known = known * known
        itself = (L * tl.sum(alone, 0) / tl.maximum(n, 1e-300) - 1.0) / tl.maximum(L - 1.0, 1.0)
        itself = tl.exp(tl.log(tl.maximum(itself, _VAGUE)) * (1.0 - known) * tl.exp(-L * _HALVED))
        agreed, chance = tl.sum(agree, 0), 1.0 / L
        c = _concentration(agreed, n, itself, L, chance)
        if c > 1.0:
            whole, kinds = predicted_before + b, _kinds(agreed, n, L) / _KINDS
            believed = (1.0 - known) * (1.0 - 1.0 / (1.0 + kinds * kinds * kinds))
            chance = _by_chance(sums, bias, n, whole, believed, classes, BLOCK)
            c = _concentration(agreed, n, itself, L, chance)
        rest = _concentration(tl.sum(agree_rest, 0), tl.sum(counts, 0), itself, L, chance)
        uneven = c > 1.0
        trust = tl.where(uneven, 1.0 - 1.0 / c, 0.0)
        alpha = (1.0 - rest / L) / tl.where(rest > 1.0, rest - 1.0, 1.0)
        alpha = tl.where(rest > 1.0, tl.minimum(tl.maximum(alpha, _LEAST), _MOST), _MOST)
        extra = tl.maximum(each_class / (1.0 - trust), in_all / L)
        part = trust * (1.0 + known) / 2
        tl.store(trusts + b, trust)

        for start in range(0, classes, BLOCK):
            at, inside = _some(start, classes, BLOCK)
            predicted = tl.load(sums + at, mask=inside, other=1.0)
            answers = tl.load(sums + classes + at, mask=inside, other=1.0)
            answered = tl.maximum(answers + extra, 1e-300)
            ratio = tl.where(uneven, answered / (each + extra), 1.0)
            x = tl.log(tl.maximum(predicted + extra, 1e-300)) - part * tl.log(ratio)
            f = (trust + known * (1.0 - trust)) * tl.log((answers + alpha) / (each + alpha))
            f = tl.where(uneven, f, 0.0)
            tl.store(total + at, predicted, mask=inside)
            tl.store(shown + at, f, mask=inside)
            tl.store(bias + at, x, mask=inside)
        for _ in tl.static_range(_STEPS):
            _shape(sums, bias, L, trust, part, each, extra, uneven, classes, BLOCK)
        middle = _median(bias, classes, tl.full((), 0.0, tl.float64), False, BLOCK)
        reach = middle * 0.0
        if deviations > 0:
            reach = deviations * 1.4826 * _median(bias, classes, middle, True, BLOCK)
        for start in range(0, classes, BLOCK):
            at, inside = _some(start, classes, BLOCK)
            x = tl.load(bias + at, mask=inside, other=0.0) - middle
            if deviations > 0:
                back = tl.maximum(2.0 * reach - x, 0.0)
                cut = tl.where(x > reach, back, tl.maximum(x, -reach))
                x += tl.minimum(_SURE * trust, 1.0) * (cut - x)
            tl.store(bias + at, x, mask=inside)

        if b < images:
            _take_in(sums, items + b * classes, bias, shown, classes, BLOCK)


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _concentration(agreed, n, itself, L, chance):
    ratio = (agreed + 2 * _PAIRS) / (tl.maximum(n * (n - 1), 0.0) * chance + 2 * _PAIRS)
    return tl.where(ratio > 1.0, tl.minimum(1.0 + (ratio - 1.0) / itself, L), ratio)


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _kinds(agreed, n, L):
    seen = 2 * _PAIRS * tl.minimum(L, _MANY)
    return (tl.maximum(n * (n - 1), 0.0) + seen) / (agreed + 2 * _PAIRS)


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _by_chance(sums, said, n, whole, believed, classes, BLOCK: tl.constexpr):
    """How often two images agree by what the model favours; `said` (L,) is written over."""
    zero = tl.zeros((BLOCK,), tl.float64)
    evens, goals = zero, zero
    for start in range(0, classes, BLOCK):
        at, inside = _some(start, classes, BLOCK)
        answers = tl.load(sums + classes + at, mask=inside, other=0.0)
        squares = tl.load(sums + 2 * classes + at, mask=inside, other=0.0)
        log = tl.load(sums + 4 * classes + at, mask=inside, other=0.0)
        says = (squares + 1e-300) / (answers + 1e-300)
        own = answers / says
        left = log - own * tl.maximum(tl.log(says), _DEEP)
        e = tl.minimum(left / tl.maximum(whole - own, _OTHERS * whole), 0.0)
        tl.store(said + at, e, mask=inside)
        evens += tl.where(inside, e, 0.0)
        goals += answers * e
    goal, low = tl.sum(goals, 0) / n, tl.sum(evens, 0) * 0.0
    high = low + 1.0
    slope = tl.where(goal <= tl.sum(evens, 0) / classes, low, high)
    steps = tl.where(slope > 0.0, _TILTS, 0)
    while steps > 0:
        parts, means, squares_of = zero, zero, zero
        for start in range(0, classes, BLOCK):
            at, inside = _some(start, classes, BLOCK)
            e = tl.load(said + at, mask=inside, other=0.0)
            t = tl.where(inside, tl.exp(slope * e), 0.0)
            parts += t
            means += t * e
            squares_of += t * e * e
        part = tl.sum(parts, 0)
        mean = tl.sum(means, 0) / part
        spread = tl.maximum(tl.sum(squares_of, 0) / part - mean * mean, 1e-300)
        enough = mean <= goal
        done = enough & (slope == 1.0)
        low, high = tl.where(enough, slope, low), tl.where(enough, high, slope)
        nearer = slope + (goal - mean) / spread
        nearer = tl.where((low < nearer) & (nearer < high), nearer, (low + high) / 2)
        done = done | (tl.abs(nearer - slope) < 1e-12)
        slope = tl.where(enough & (slope == 1.0), slope, nearer)
        steps = tl.where(done, 0, steps - 1)
    parts, agreeing = zero, zero
    for start in range(0, classes, BLOCK):
        at, inside = _some(start, classes, BLOCK)
        e = tl.load(said + at, mask=inside, other=0.0)
        t = tl.where(inside, tl.exp(believed * slope * e), 0.0)
        parts += t
        agreeing += t * t
    part = tl.sum(parts, 0)
    return tl.sum(agreeing, 0) / (part * part)


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _shape(sums, bias, L, trust, part, each, extra, uneven, classes, BLOCK: tl.constexpr):
    """What may be bias anew, with predictions added that have the shape of the geometric mean."""
    zero = tl.zeros((BLOCK,), tl.float64)
    xs, logs, products, squares = zero, zero, zero, zero
    highest = zero + float("-inf")
    for start in range(0, classes, BLOCK):
        at, inside = _some(start, classes, BLOCK)
        x = tl.load(bias + at, mask=inside, other=0.0)
        log = tl.load(sums + 4 * classes + at, mask=inside, other=0.0)
        xs += x
        logs += log
        highest = tl.maximum(highest, tl.where(inside, log, highest))
    mean_x, mean, top = tl.sum(xs, 0) / L, tl.sum(logs, 0) / L, tl.max(highest, 0)
    for start in range(0, classes, BLOCK):
        at, inside = _some(start, classes, BLOCK)
        x = tl.load(bias + at, mask=inside, other=0.0) - mean_x
        log = tl.load(sums + 4 * classes + at, mask=inside, other=0.0) - mean
        products += tl.where(inside, x * log, 0.0)
        squares += tl.where(inside, log * log, 0.0)
    length = tl.sum(squares, 0)
    slope = tl.sum(products, 0) / tl.where(length > 0, length, 1.0)
    slope = tl.where(length > 0, (1.0 - trust) * L / (L + _FEW) * tl.maximum(slope, 0.0), 0.0)
    whole = zero
    for start in range(0, classes, BLOCK):
        at, inside = _some(start, classes, BLOCK)
        log = tl.load(sums + 4 * classes + at, mask=inside, other=0.0)
        whole += tl.where(inside, tl.exp(slope * (log - top)), 0.0)
    each_shape = L / tl.sum(whole, 0)
    for start in range(0, classes, BLOCK):
        at, inside = _some(start, classes, BLOCK)
        predicted = tl.load(sums + at, mask=inside, other=1.0)
        answers = tl.load(sums + classes + at, mask=inside, other=1.0)
        log = tl.load(sums + 4 * classes + at, mask=inside, other=0.0)
        added = extra * tl.exp(slope * (log - top)) * each_shape
        answered = tl.maximum(answers + extra, 1e-300)
        ratio = tl.where(uneven, answered / (each + extra), 1.0)
        x = tl.log(tl.maximum(predicted + added, 1e-300)) - part * tl.log(ratio)
        tl.store(bias + at, x, mask=inside)


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _take_in(sums, item, bias, shown, classes, BLOCK: tl.constexpr):
    """Add an image to the sums."""
    lowest = tl.full((BLOCK,), float("-inf"), tl.float64)
    answers, labels = lowest, lowest
    for start in range(0, classes, BLOCK):
        z, f, at, inside = _adjusted(item, bias, shown, start, classes, BLOCK)
        answers = tl.maximum(answers, tl.where(inside, z + f / 2, lowest))
        labels = tl.maximum(labels, tl.where(inside, z + f, lowest))
    peak, best = tl.max(answers, 0), tl.max(labels, 0)
    whole = tl.zeros((BLOCK,), tl.float64)
    firsts = tl.zeros((BLOCK,), tl.int32) + classes
    for start in range(0, classes, BLOCK):
        z, f, at, inside = _adjusted(item, bias, shown, start, classes, BLOCK)
        whole += tl.where(inside, tl.exp(z + f / 2 - peak), 0.0)
        firsts = tl.minimum(firsts, tl.where(inside & (z + f == best), at, classes))
    per, label = 1.0 / tl.sum(whole, 0), tl.min(firsts, 0)
    for start in range(0, classes, BLOCK):
        z, f, at, inside = _adjusted(item, bias, shown, start, classes, BLOCK)
        log = tl.load(item + at, mask=inside, other=0.0)
        p = tl.exp(log)
        r = tl.exp(z + f / 2 - peak) * per
        _add(sums + at, p, inside)
        _add(sums + classes + at, r, inside)
        _add(sums + 2 * classes + at, r * r, inside)
        _add(sums + 3 * classes + at, (at == label).to(tl.float64), inside)
        _add(sums + 4 * classes + at, tl.maximum(log, _DEEP), inside)


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _some(start, classes, BLOCK: tl.constexpr):
    at = start + tl.arange(0, BLOCK)
    return at, at < classes


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _adjusted(item, bias, shown, start, classes, BLOCK: tl.constexpr):
    at, inside = _some(start, classes, BLOCK)
    z = tl.load(item + at, mask=inside, other=0.0) - tl.load(bias + at, mask=inside, other=0.0)
    return z, tl.load(shown + at, mask=inside, other=0.0), at, inside


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _add(into, what, inside):
    tl.store(into, tl.load(into, mask=inside, other=0.0) + what, mask=inside)


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _median(x, classes, shift, SIZES: tl.constexpr, BLOCK: tl.constexpr):
    """The median of x − shift, or of its absolute values.

    Of the numbers that it may be, `low` to `high`, some are counted: up to where it would be if
    they were spread evenly, and every third time up to the middle, since they may not be.
    """
    k = (classes + 1) // 2
    least = tl.zeros((BLOCK,), tl.int64) + _TOP
    most = -least
    for start in range(0, classes, BLOCK):
        key, inside = _keys(x, start, classes, shift, SIZES, BLOCK)
        least = tl.minimum(least, tl.where(inside, key, least))
        most = tl.maximum(most, tl.where(inside, key, most))
    low, high = tl.min(least, 0), tl.max(most, 0)
    under, step = tl.full((), 0, tl.int32), tl.full((), 0, tl.int32)
    within = under + classes  # so many numbers are up to high, and `under` below low
    while low < high:
        part = (k - under - 0.5) / (within - under)
        even = _key(_number(low) + (_number(high) - _number(low)) * part)
        half = (low & high) + ((low ^ high) >> 1)  # their mean, whatever their signs
        half = tl.where(step % 3 == 2, half, tl.minimum(tl.maximum(even, low), high - 1))
        count = tl.zeros((BLOCK,), tl.int32)
        least = tl.zeros((BLOCK,), tl.int64) + _TOP
        most = -least
        for start in range(0, classes, BLOCK):
            key, inside = _keys(x, start, classes, shift, SIZES, BLOCK)
            upto = inside & (key <= half)
            count += upto.to(tl.int32)
            most = tl.maximum(most, tl.where(upto, key, most))
            least = tl.minimum(least, tl.where(inside & (key > half), key, least))
        found, last, next_ = tl.sum(count, 0), tl.max(most, 0), tl.min(least, 0)
        enough = found >= k
        low, high = tl.where(enough, low, next_), tl.where(enough, last, high)
        low, high = tl.where(found == k, last, low), tl.where(found == k - 1, next_, high)
        under, within = tl.where(enough, under, found), tl.where(enough, found, within)
        step += 1
    middle = _number(low)
    if classes % 2 == 0:
        count = tl.zeros((BLOCK,), tl.int32)
        above = tl.zeros((BLOCK,), tl.int64) + _TOP
        for start in range(0, classes, BLOCK):
            key, inside = _keys(x, start, classes, shift, SIZES, BLOCK)
            count += (inside & (key <= low)).to(tl.int32)
            above = tl.minimum(above, tl.where(inside & (key > low), key, above))
        again = tl.sum(count, 0) > k
        middle = (middle + _number(tl.where(again, low, tl.min(above, 0)))) / 2
    return middle


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _keys(x, start, classes, shift, SIZES: tl.constexpr, BLOCK: tl.constexpr):
    """Whole numbers in the order of the numbers."""
    at, inside = _some(start, classes, BLOCK)
    v = tl.load(x + at, mask=inside, other=0.0) - shift
    if SIZES:
        v = tl.abs(v)
    return _key(v), inside


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _key(number):
    bits = number.to(tl.int64, bitcast=True)
    return bits ^ ((bits >> 63) & _TOP)


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _number(key):
    return (key ^ ((key >> 63) & _TOP)).to(tl.float64, bitcast=True)
