"""The bodies of requests and answers, for OpenAPI."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, field_validator

from adte.core.schema import MOST
from adte.models.prompts import SINGLE

__all__ = ["Answer", "Error", "Facts", "Health", "History", "Info", "Made", "New", "State", "Token"]

OPTIONS = 64  # of a method
ID = r"^[a-z0-9][a-z0-9_-]{0,63}$"
Name = Annotated[str, StringConstraints(min_length=1, max_length=200, strip_whitespace=True)]
Text = Annotated[str, StringConstraints(min_length=1, max_length=500)]
Names = Annotated[list[Name], Field(min_length=1, max_length=MOST, fail_fast=True)]
Texts = Annotated[list[Text], Field(max_length=MOST, fail_fast=True)]
Number = Annotated[float, Field(allow_inf_nan=False)]
Scalar = Annotated[bool | int | Number | Annotated[str, StringConstraints(max_length=100)] | None,
                   Field(union_mode="smart")]  # fmt: skip


class Model(BaseModel):
    model_config = ConfigDict(extra="forbid", protected_namespaces=())


class New(Model):
    """A stream to be made."""

    classes: Names = Field(description="class names")
    id: str | None = Field(None, pattern=ID, description="made up if left out")
    templates: Text | Texts = Field(list(SINGLE), description="a set's name, or texts with {}")
    descriptions: dict[Name, Texts] | None = Field(None, description="sentences by class name")
    method: Annotated[str, StringConstraints(max_length=100)] = "tilt"
    options: dict[Annotated[str, StringConstraints(max_length=100)], Scalar] = Field(
        default_factory=dict, max_length=OPTIONS
    )
    views: int = Field(64, ge=1, le=100_000)
    seed: int = Field(0, ge=0, lt=1 << 53)
    protocol: Literal["online", "frozen", "episodic"] = "online"
    state: str | None = Field(None, description="a state to go on from: an export, in base64")
    start: str | None = Field(None, description="a state to begin with: its bias, no frequencies")

    @field_validator("views", "seed", mode="before")
    @classmethod
    def are_numbers(cls, value: Any) -> Any:
        """As the document says; pydantic would read true as 1, and "4" as 4."""
        if isinstance(value, bool | str):
            raise ValueError("Input should be a whole number")
        return value

    @field_validator("options", mode="before")
    @classmethod
    def are_few(cls, value: Any) -> Any:
        """Told before they are looked at: millions of wrong ones would take long."""
        if isinstance(value, dict) and len(value) > OPTIONS:
            raise ValueError(f"there are more than {OPTIONS} of them")
        return value

    @field_validator("classes", "templates", "descriptions", "method", "options")
    @classmethod
    def can_be_written(cls, value: Any) -> Any:
        """Half a character, which JSON allows, cannot be stored or sent."""
        try:
            repr(value) if value is None else _words(value).encode()
        except UnicodeEncodeError:
            raise ValueError("a text holds half a character") from None
        return value


def _words(value: Any) -> str:
    if isinstance(value, dict):
        return "".join(_words(k) + _words(v) for k, v in value.items())
    return "".join(map(_words, value)) if isinstance(value, list) else str(value)


class Facts(Model):
    """A stream."""

    id: str
    model: str
    classes: list[str]
    templates: list[str]
    described: bool = Field(description="whether it was given descriptions")
    method: str
    options: dict[str, Any]
    views: int
    seed: int
    protocol: str
    frozen: bool
    seen: int
    temperature: float = Field(description="of confidence; 1 unless its state was calibrated")
    seq: int
    created: str
    damaged: str | None


class Made(Facts):
    token: str | None


class Changed(Facts):
    repeated: bool


class Streams(Model):
    streams: list[Facts]


class Token(Model):
    id: str
    token: str


class Box(Model):
    top: int
    left: int
    height: int
    width: int
    flip: bool


class View(Model):
    box: Box
    entropy: float
    kept: bool
    weight: float | None
    index: int
    label: str
    confidence: float
    thumbnail: str | None


class Size(Model):
    width: int
    height: int


class Explained(Model):
    """What a prediction was made of."""

    image: Size
    measure: str
    views: list[View]
    prior: list[float] | None
    q: list[float] | None
    methods: dict[str, list[float]]


class Predicted(Model):
    label: str
    index: int
    confidence: float
    best: list[tuple[str, float]]
    probs: list[float] | None
    explain: Explained | None


class Answer(Model):
    """The answer of predict."""

    stream: str
    seq: int
    seen: int
    learned: bool
    repeated: bool
    predictions: list[Predicted]


class State(Model):
    """What a stream has learned."""

    id: str
    method: str
    seen: int
    seq: int
    frozen: bool
    classes: list[str]
    prior: list[float] | None
    q: list[float] | None
    counts: list[int]
    drift: float | None
    labelled: int
    accuracy: float | None
    bytes: int


class Row(Model):
    seq: int
    time: str
    index: int
    label: str
    confidence: float
    learned: bool
    drift: float | None
    truth: int | None


class History(Model):
    id: str
    rows: list[Row]


class MethodInfo(Model):
    name: str
    summary: str
    stateful: bool
    options: dict[str, Any]


class Info(Model):
    """What there is, for pages and programs that ask."""

    version: str
    model: str
    methods: list[MethodInfo]
    templates: list[str]
    formats: list[str]
    limits: dict[str, Any]
    tokens: bool


class Health(Model):
    status: str
    version: str


class Reason(Model):
    code: str
    message: str
    request_id: str


class Error(Model):
    error: Reason
