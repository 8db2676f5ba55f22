"""A client of the service."""

from __future__ import annotations

import base64
import io
import json
import os
import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from adte.core.errors import InputError
from adte.serve.wire import ServiceError, Wire

if TYPE_CHECKING:
    from adte.classifier.calibration import Calibration

__all__ = ["Answer", "Client", "RemoteStream", "ServiceError"]

File = str | os.PathLike[str] | bytes | bytearray | memoryview
Image = Any  # a path, the bytes of a file, a Pillow image, a uint8 array or tensor

MAKING = 600.0  # seconds at least to make a stream: the texts of many classes take minutes
FRAME = 256  # bytes at most that a form has around an image, or at its end


@dataclass(frozen=True)
class Answer:
    """The answer of the service for one image.

    Attributes:
        label: name of the most probable class.
        index: its index.
        confidence: its probability.
        best: the most probable classes as (name, probability), best first.
        probs: probabilities of all classes, if asked for with probs=True.
        explain: what explains the answer, if asked for with explain=True.
        seq: number of the stream's last event.
        seen: number of images that the stream has learned from.
        learned: whether it learned from this image.
        repeated: whether this is the answer to an earlier request with the same key.
    """

    label: str
    index: int
    confidence: float
    best: list[tuple[str, float]]
    probs: list[float] | None
    explain: dict[str, Any] | None = field(repr=False)
    seq: int
    seen: int
    learned: bool
    repeated: bool


class Client(Wire):
    """A client for a service that `adte serve` runs.

    Threads and processes can share it. If an answer is lost or the server is busy, the request is
    sent again. Requests that change something carry an idempotency key, so
    nothing is created or learned twice.

    Args:
        url: address of the service.
        token: token of the administrator or of a stream, if the service requires one.
        retries: how often a request is sent again. While the service is starting, the client waits
            for it up to `timeout`, but no longer than 15 s where nothing listens at the address;
            this does not count as a retry. With 0 it does not wait.
        timeout: seconds to wait for an answer, or None without end; for a new stream at least ten
            minutes.

    Raises:
        InputError: if the address or a number cannot be used.

    >>> client = Client("http://127.0.0.1:8017")                     # doctest: +SKIP
    >>> shop = client.create(["cat", "dog", "car"], id="shop")       # doctest: +SKIP
    >>> shop.predict("photo.jpg").label                              # doctest: +SKIP
    'cat'
    """

    # ------------------------------------------------------------------ streams

    def create(
        self,
        classes: Sequence[str],
        id: str | None = None,
        *,
        key: str | None = None,
        **settings: Any,
    ) -> RemoteStream:
        """Create a stream on the service.

        Args:
            classes: class names.
            id: id of the stream; by default the service chooses one.
            key: idempotency key of an earlier request, to get the stream that it created.
            settings: `method`, `options`, `views`, `seed`, `templates`, `protocol` and others, as
                in the API. `start` and `state`, saved states to begin with, may be a file or its
                bytes.

        Raises:
            ServiceError: if the service refuses it, or does not answer.
        """
        if isinstance(classes, str):
            raise InputError(f"classes={classes!r} is one text; pass a list of names")
        for name in ("start", "state"):
            if (file := settings.get(name)) is not None and _is_file(file):
                settings[name] = base64.b64encode(_read(file)).decode()
        asked = {"classes": list(classes), **({} if id is None else {"id": id}), **settings}
        seconds = None if self.timeout is None else max(self.timeout, MAKING)
        made = self.call("POST", "/v1/streams", json.dumps(asked).encode(), "application/json",
                         key=key or new_key(), timeout=seconds)  # fmt: skip
        return RemoteStream(self, made["id"], made["token"] or self.token)

    def stream(self, id: str, token: str | None = None) -> RemoteStream:
        """Use a stream that exists already; nothing is sent.

        Args:
            id: id of the stream.
            token: token of the stream; by default that of the client.
        """
        return RemoteStream(self, id, token or self.token)

    def streams(self) -> list[dict[str, Any]]:
        """List all streams, with the facts about each."""
        found: list[dict[str, Any]] = self.call("GET", "/v1/streams")["streams"]
        return found

    def info(self) -> dict[str, Any]:
        """Facts about the service: its model, methods, formats and limits."""
        found: dict[str, Any] = self.call("GET", "/v1/info")
        return found


@dataclass(frozen=True)
class RemoteStream:
    """A stream on a service, from `Client.create` or `Client.stream`.

    In all methods `key` is an idempotency key; a request that is sent again with the same key
    counts once. By default each request has a new one.

    Attributes:
        client: the client that it was made with.
        id: id of the stream.
        token: token of the stream.
    """

    client: Client
    id: str
    token: str | None = field(repr=False)

    def predict(self, image: Image, *, label: str | None = None, **options: Any) -> Answer:
        """Predict an image, and learn from it.

        Args:
            image: a path, the bytes of an image file, a Pillow image, or uint8 pixels. Files are
                sent as they are, pixels as PNG.
            label: the true class, if it is known; the service then keeps the accuracy.
            options: `learn`, `top`, `probs`, `explain` and `thumbnails` as in the API, and `key`.

        Raises:
            ServiceError: if the service refuses the request, or does not answer.
        """
        labels = [] if label is None else [label]
        return self._predict(labels, body=_encoded(image), **options)[0]

    def predict_many(
        self, images: Sequence[Image], *, labels: Sequence[str] | None = None, **options: Any
    ) -> list[Answer]:
        """Predict several images in one request, and learn from all of them or none.

        Args:
            images: images as in `predict`.
            labels: their true classes, if known.
            options: as in `predict`.
        """
        if _is_one(images):
            name = repr(images) if isinstance(images, str) else f"this {type(images).__name__}"
            raise InputError(f"predict_many takes a list of images, and {name} is one; "
                             "give it to predict, or in a list")  # fmt: skip
        files = [("image", ("image", _encoded(x), "application/octet-stream")) for x in images]
        return self._predict(labels or [], files=files, **options)

    def _predict(
        self,
        labels: Sequence[str],
        *,
        body: bytes | None = None,
        files: Any = None,
        key: str | None = None,
        **options: Any,
    ) -> list[Answer]:
        params = {"label": list(labels), **options}
        learns = options.get("learn", True)
        found = self._call("POST", "/predict", body, key=key, params=params, files=files,
                           counts=learns)  # fmt: skip
        shared = {k: found[k] for k in ("seq", "seen", "learned", "repeated")}
        return [
            Answer(**{**row, "best": [(name, x) for name, x in row["best"]]}, **shared)
            for row in found["predictions"]
        ]

    def facts(self) -> dict[str, Any]:
        """Facts about the stream: its classes, method, options and the like."""
        return dict(self._call("GET", ""))

    def state(self) -> dict[str, Any]:
        """The state that was learned: prior, q, counts of each class, drift of the prior."""
        return dict(self._call("GET", "/state"))

    def history(self, last: int = 200) -> list[dict[str, Any]]:
        """The last predictions that counted, oldest first."""
        return list(self._call("GET", "/history", params={"last": last})["rows"])

    def freeze(self, key: str | None = None) -> dict[str, Any]:
        """Stop learning."""
        return dict(self._call("POST", "/freeze", key=key))

    def unfreeze(self, key: str | None = None) -> dict[str, Any]:
        """Start learning again."""
        return dict(self._call("POST", "/unfreeze", key=key))

    def reset(self, key: str | None = None) -> dict[str, Any]:
        """Forget what was learned."""
        return dict(self._call("POST", "/reset", key=key))

    def calibrate(
        self, images: Sequence[Image], labels: Sequence[str], key: str | None = None
    ) -> Calibration:
        """Calibrate confidences on some labelled images of the kind to come; fifty are enough.

        The stream predicts the images without learning from them, and gets the temperature that
        suits its answers. Unlike the rest of the client, this needs torch.

        Args:
            images: labelled images, as in `predict`.
            labels: the true class of each image.
            key: idempotency key.
        """
        import torch

        from adte.classifier.calibration import fitted, indices_of, tempered

        if _is_one(images) or not (images := list(images)):
            raise InputError("calibrate takes a list of images and one of their labels; give some")
        facts, limits = self.facts(), self.client.info()["limits"]
        truths = indices_of(labels, facts["classes"], len(images))
        found = [a.probs for some in _groups(images, limits)
                 for a in self.predict_many(some, learn=False, probs=True)]  # fmt: skip
        plain = tempered(torch.tensor(found, dtype=torch.float64), 1 / facts["temperature"])
        done = fitted(plain, truths)
        self._call("POST", "/temperature", key=key, params={"value": done.temperature})
        return done

    def export(self) -> bytes:
        """Download the state, as the bytes of a file that `Classifier.load` reads."""
        return bytes(self._call("GET", "/export"))

    def take_over(self, state: File, key: str | None = None) -> dict[str, Any]:
        """Replace what was learned by a state that was exported: a file or its bytes."""
        return dict(self._call("POST", "/import", _read(state), key=key))

    def delete(self) -> None:
        """Delete the stream and its state."""
        self._call("DELETE", "", counts=False)

    def _call(
        self,
        verb: str,
        path: str,
        body: bytes | None = None,
        *,
        key: str | None = None,
        counts: bool = True,
        **more: Any,
    ) -> Any:
        """A request of this stream; one that counts has a key, so that it does so once."""
        if verb != "GET" and counts and key is None:
            key = new_key()
        where = f"/v1/streams/{quote(self.id, safe='')}{path}"
        return self.client.call(verb, where, body, key=key, token=self.token, **more)


def new_key() -> str:
    """An idempotency key that nobody has used."""
    return secrets.token_urlsafe(18)


def _is_file(value: Any) -> bool:
    """Whether it is a file's name or content, and not base64 already."""
    if isinstance(value, str):
        with suppress(OSError, ValueError):
            return Path(value).is_file()
    return isinstance(value, os.PathLike | bytes | bytearray | memoryview)


def _read(file: File) -> bytes:
    if isinstance(file, bytes | bytearray | memoryview):
        return bytes(file)
    try:
        return Path(file).read_bytes()
    except (OSError, ValueError, TypeError) as error:
        raise InputError(f"cannot read {str(file)!r} ({error}); check the path") from error


def _encoded(image: Image) -> bytes:
    """An image as a file: that of a path or bytes, or else a PNG of its pixels."""
    if isinstance(image, str | os.PathLike | bytes | bytearray | memoryview):
        return _read(image)
    from PIL import Image as Pillow

    from adte.images.decode import load_image

    buffer = io.BytesIO()
    Pillow.fromarray(load_image(image)).save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()


def _groups(images: Iterable[Image], limits: dict[str, Any]) -> Iterator[list[bytes]]:
    """Images as files, as many together as one request may have."""
    most, room = min(limits["max_images"], limits["queue"]), limits["max_bytes"] - FRAME
    some, size = list[bytes](), 0
    for image in map(_encoded, images):
        size += len(image) + FRAME
        if some and (len(some) == most or size > room):
            yield some
            some, size = [], len(image) + FRAME
        some.append(image)
    if some:
        yield some


def _is_one(images: object) -> bool:
    """Whether something is an image itself: a path, bytes, pixels (H, W) or (H, W, 3)."""
    if isinstance(images, str | bytes | bytearray) or not isinstance(images, Iterable):
        return True
    return getattr(images, "ndim", 4) < 4
