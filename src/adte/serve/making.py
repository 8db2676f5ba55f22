"""From the body of a request to a stream, beside all that goes on."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from adte.core.errors import AdteError, unknown
from adte.serve import schemas
from adte.serve.bodies import decoded
from adte.serve.jobs import refusal
from adte.serve.keeper import Call, now
from adte.serve.limits import Refused, clipped
from adte.serve.service import Service
from adte.serve.settings import Event, Settings
from adte.serve.streams import Stream

__all__ = ["made", "read_new"]

FAULTS = 1000  # of a body, of which the first is told; to tell them apart takes long


def read_new(body: bytes) -> dict[str, Any]:
    """What a body asks for, or a refusal."""
    try:
        return schemas.New.model_validate_json(body).model_dump()
    except ValidationError as error:
        raise _fault(error) from None


def made(
    service: Service,
    id: str,
    asked: dict[str, Any],
    token: bytes | None,
    key: str | None = None,
    digest: bytes = b"",
) -> Call:
    """The stream that was asked for, and what adds it to the others."""
    service.engine.check_open()  # those before it may have taken long
    service.keeper.check_new(id)
    try:
        with service.making:
            settings = Settings.of(asked, service.limits)
            others = list(service.keeper.streams.values())
            like = next((s for s in others if s.settings == settings), next(iter(others), None))
            stream = Stream.make(id, settings, service.model, now(), token, service.limits, like)
            warm = list[Event]()
            if asked["state"] is not None:
                warm = stream.change("state", decoded("state", asked["state"]))
            elif asked["start"] is not None:
                warm = stream.begin(decoded("start", asked["start"]))
    except AdteError as error:
        raise refusal(error) from None
    except (TypeError, ValueError, ArithmeticError, RuntimeError) as error:
        raise Refused(422, "request", "a stream with these options does not work "
                      f"({type(error).__name__}); check them") from error  # fmt: skip
    return Call(call=lambda keeper: keeper.create(stream, warm, key, digest), alone=True)


def _fault(error: ValidationError) -> Refused:
    """The first thing that is wrong, by the name of its field and without what it holds."""
    if error.error_count() > FAULTS:
        return Refused(422, "request", f"the body has {error.error_count():,} faults; check it")
    first = error.errors(include_input=False, include_url=False, include_context=False)[0]
    place, known = first["loc"], schemas.New.model_fields
    if first["type"] == "extra_forbidden":
        return Refused(422, "request", str(unknown("field", clipped(str(place[0])), known)))
    where = ".".join(str(x) for x in place if isinstance(x, int) or x in known)
    said = first["msg"].removeprefix("Value error, ")
    if place[:1] == ("options",) and len(place) > 1:
        where = f"options[{clipped(str(place[1]))!r}]"
        if place[-1] != "[key]":  # of what it may be, the first would be named
            said = "Input should be a number, a text of up to 100 letters, true, false or null"
    return Refused(422, "request", f"{where or 'the body'}: {said}")
