"""Painted pictures for the page: fruit on a table. Nobody else's photographs."""

from __future__ import annotations

import io
from functools import cache

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

FRUIT = {"lemon": (244, 208, 40), "orange": (238, 125, 22), "pomegranate": (172, 32, 46)}
LARGER = 2  # painted so much larger, then made smaller: smooth edges

Colour = tuple[int, int, int]


def _blend(size: tuple[int, int], top: Colour, bottom: Colour) -> Image.Image:
    t = np.linspace(0, 1, size[1])[:, None, None]
    rows = (1 - t) * np.array(top) + t * np.array(bottom)
    return Image.fromarray(np.broadcast_to(rows, (size[1], size[0], 3)).astype(np.uint8))


def _fruit(kind: str, radius: int, rng: np.random.Generator) -> tuple[Image.Image, Image.Image]:
    """One piece, lit from the upper left, and its mask."""
    side = int(1.3 * radius)
    y, x = np.mgrid[-side:side, -side:side].astype(np.float32) / radius
    turn, flat = (rng.uniform(-0.5, 0.3), 0.8) if kind == "lemon" else (0.0, 0.97)
    u = x * np.cos(turn) + y * np.sin(turn)
    v = (-x * np.sin(turn) + y * np.cos(turn)) / flat
    inside = u**2 + v**2 < 1
    if kind == "lemon":
        inside |= ((np.abs(u) - 0.98) / 0.16) ** 2 + (v / 0.2) ** 2 < 1  # its two tips
    depth = np.sqrt(np.clip(1 - u**2 - v**2, 0, 1))
    light = np.clip(0.42 + 0.62 * (0.68 * depth - 0.5 * x - 0.55 * y), 0.25, 1.15)
    shine = np.clip(1 - ((x + 0.36) ** 2 + (y + 0.4) ** 2) / 0.04, 0, 1)
    coarse = Image.fromarray(rng.normal(0, 0.03, (side // 3, side // 3)).astype(np.float32))
    skin = np.asarray(coarse.resize(x.shape, Image.Resampling.BICUBIC))
    rgb = np.array(FRUIT[kind]) * (light + skin)[..., None] + 150 * (shine**2)[..., None]
    body = Image.fromarray(rgb.clip(0, 255).astype(np.uint8))
    return body, Image.fromarray((255 * inside).astype(np.uint8))


@cache
def painted(*kinds: str, seed: int = 0, width: int = 480, height: int = 360) -> bytes:
    """A table with these pieces of fruit on it, as a JPEG; another seed paints another one."""
    rng = np.random.default_rng(seed)
    w, h = width * LARGER, height * LARGER
    picture = _blend((w, h), (202, 214, 216), (232, 226, 212))
    edge = int(h * rng.uniform(0.5, 0.58))
    picture.paste(_blend((w, h - edge), (176, 132, 92), (128, 88, 58)), (0, edge))
    draw = ImageDraw.Draw(picture)
    for y in rng.integers(edge + 8, h, 26):  # the grain of the wood
        draw.line([(0, y), (w, y + int(rng.normal(0, 3)))], fill=(118, 80, 52), width=LARGER)
    radius = int(h * rng.uniform(0.2, 0.26))
    middle = w * rng.uniform(0.44, 0.56)
    for i, kind in enumerate(kinds):
        x = int(middle + (i - (len(kinds) - 1) / 2) * 2.1 * radius)
        y = int(h * rng.uniform(0.62, 0.7))
        low = [(x - radius) // 8, (y + 0.5 * radius) // 8, (x + 1.6 * radius) // 8,
               (y + 1.1 * radius) // 8]  # fmt: skip
        shadow = Image.new("L", (w // 8, h // 8))
        ImageDraw.Draw(shadow).ellipse(low, fill=120)
        shadow = shadow.filter(ImageFilter.GaussianBlur(LARGER)).resize((w, h))
        picture.paste((60, 38, 26), (0, 0), shadow)
        body, mask = _fruit(kind, radius, rng)
        picture.paste(body, (x - body.width // 2, y - body.height // 2), mask)
        if kind != "lemon":
            a, b = x + 0.06 * radius, y - 0.86 * radius
            draw.line([(a, b), (a + 0.1 * radius, b - 0.28 * radius)], (84, 60, 30), 5 * LARGER)
        if kind == "orange":
            leaf = (a + 0.08 * radius, b - 0.34 * radius, a + 0.62 * radius, b - 0.1 * radius)
            draw.ellipse(leaf, fill=(70, 118, 50))
    buffer = io.BytesIO()
    picture.resize((width, height), Image.Resampling.LANCZOS).save(buffer, "JPEG", quality=90)
    return buffer.getvalue()
