"""Streams as they were: the newest good snapshot, and the events of the log behind it."""

from __future__ import annotations

from shlex import quote

from adte.core.errors import AdteError, StateError, brief
from adte.models.base import Model
from adte.serve.packing import learned_in, unpack
from adte.serve.store import Store, Stored
from adte.serve.streams import Stream
from adte.serve.telling import sound

__all__ = ["check_model", "recover", "recover_all"]


def check_model(store: Store, model: Model) -> None:
    """Refuse another model than the streams were learned with, if there are any."""
    known = store.model
    if known is None or store.empty:
        return
    if known["name"] != model.name:
        raise StateError(
            f"the streams in {str(store.folder)!r} were learned with model {known['name']!r}, not "
            f"{model.name!r}; give the same model or another folder"
        )
    if known["fingerprint"] != model.fingerprint:
        raise StateError(
            f"the streams in {str(store.folder)!r} were learned with other weights of model "
            f"{model.name!r} (fingerprint {known['fingerprint']}, here {model.fingerprint}); use "
            "the weights that they were learned with"
        )


def recover_all(store: Store, model: Model) -> tuple[dict[str, Stream], list[str]]:
    """All streams, and sentences about what was dropped or is damaged."""
    check_model(store, model)
    notes: list[str] = []
    if store.lost:
        notes.append(
            f"{store.lost} events that were acknowledged are missing: the tail of the log was cut"
        )
    streams: dict[str, Stream] = {}
    alike: dict[str, Stream] = {}
    stream = None
    for stored in store.streams():
        like = alike.get(settings := repr(stored.settings), stream)
        stream, said = recover(store, stored, model, like)
        streams[stored.id] = alike[settings] = stream
        notes += [f"stream {stored.id!r}: {text}" for text in said]
    return streams, notes


def recover(
    store: Store, stored: Stored, model: Model, like: Stream | None = None
) -> tuple[Stream, list[str]]:
    """One stream, and what is to be said of it. The store is only read."""
    try:
        stream = Stream.make(
            stored.id, stored.settings, model, stored.created, stored.token, like=like
        )
    except AdteError as error:  # its method came from a package that is gone
        raise StateError(
            f"stream {stored.id!r} cannot be made any more: {error}. Install what it was made "
            f"with, or run `adte state {quote(str(store.folder))} delete {stored.id}`"
        ) from error
    notes = _newest_good(store, stream)
    if count := store.unnumbered(stream.id):
        notes.append(f"{count} rows have the number of no event and were dropped")
    missing = _redo(store, stream, notes)
    if missing:
        stream.damaged = missing
        notes.append(missing)
    if stored.origin is not None and not stream.damaged:
        try:
            stream.origin = unpack(stored.origin)["origin"]
        except (AdteError, KeyError, TypeError):  # of use to people alone
            notes.append("the prior that drift is measured from is damaged; it begins anew")
    for row in store.history(stream.id, 1):
        if sound(row, len(stream.clf.classes)):
            stream.drift = row[6]
    return stream, notes


def _newest_good(store: Store, stream: Stream) -> list[str]:
    notes = []
    for s in store.snapshots(stream.id):
        why = "its checksum does not fit" if not s.good else ""
        if not why:
            try:
                tensors, facts = learned_in(s.data)
                stream.clf.method.load_state_dict(tensors)
            except AdteError as error:
                why = str(error)
        if not why:
            stream.clf.seen, stream.clf.frozen = s.seen, s.frozen
            stream.clf.temperature = facts["temperature"]
            stream.clf.lineage = facts["lineage"]
            stream.seq = stream.kept = s.seq
            break
        notes.append(f"the snapshot at event {s.seq} was dropped ({why})")
    return notes


def _redo(store: Store, stream: Stream, notes: list[str]) -> str:
    """Do the events of the log again; a sentence if that cannot be."""
    begun, last, why = bool(stream.kept), store.last(stream.id), "no good snapshot reaches the log"
    for seq, event in store.log(stream.id, stream.seq):
        if seq != stream.seq + 1:
            if not begun:
                break
            notes.append(f"events {stream.seq + 1} to {seq - 1} are missing and were dropped")
        begun = True
        if event is None:
            notes.append(f"event {seq} is damaged and was dropped")
        else:
            try:
                stream.redo(event)
            except (OSError, MemoryError):  # the machine's, and no damage
                raise
            except Exception as error:  # whatever else it is, it stops no other stream
                said = str(error) if isinstance(error, AdteError) else brief(error)
                why = f"event {seq} cannot be done again ({said})"
                break
        stream.seq = seq
    if last <= stream.seq:
        return ""
    stream.clf.reset()
    stream.seq = last
    return f"{why}; reset the stream, or import a state"
