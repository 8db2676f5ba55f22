"""Streams as they were: the newest good snapshot, and the events of the log behind it."""

from __future__ import annotations

from shlex import quote

from adte.core.errors import AdteError, StateError, brief
from adte.models.base import Model
from adte.serve.packing import learned_in, unpack
from adte.serve.store import Store, Stored
from adte.serve.streams import Stream

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
    alike: dict[str, Stream] = {}  # by their settings; they share the vectors of the classes
    for stored in store.streams():
        like = alike.get(repr(stored.settings)) or next(iter(alike.values()), None)
        stream, texts = recover(store, stored, model, like)
        streams[stored.id] = alike[repr(stored.settings)] = stream
        notes += [f"stream {stored.id!r}: {text}" for text in texts]
    return streams, notes


def recover(
    store: Store, stored: Stored, model: Model, like: Stream | None = None
) -> tuple[Stream, list[str]]:
    """One stream, and sentences about it. The store is only read."""
    try:
        stream = Stream.make(
            stored.id, stored.settings, model, stored.created, stored.token, like=like
        )
    except AdteError as error:  # its method came from a package that is gone
        raise StateError(
            f"stream {stored.id!r} cannot be made any more: {error}. Install what it was made "
            f"with, or run `adte state {quote(str(store.folder))} delete {stored.id}`"
        ) from error
    stream.made = stored.made
    notes = _load_newest(store, stream)
    if damage := _redo(store, stream, notes):
        stream.damaged = damage
        notes.append(damage)
    if stored.origin is not None and not stream.damaged:
        try:
            stream.origin = unpack(stored.origin)["origin"]
        except (AdteError, KeyError, TypeError):  # of use to people alone
            notes.append("the prior that drift is measured from is damaged; it begins anew")
    for row, good in store.history(stream.id, 1):
        if good:
            stream.drift = row.drift
    return stream, notes


def _load_newest(store: Store, stream: Stream) -> list[str]:
    """Load the newest good snapshot; notes about those that were dropped."""
    notes = []
    for snapshot in store.snapshots(stream.id):
        try:
            if not snapshot.good:
                raise StateError("its checksum does not fit")
            tensors, facts = learned_in(snapshot.data)
            stream.clf.method.load_state_dict(tensors)
        except AdteError as error:
            notes.append(f"the snapshot at event {snapshot.seq} was dropped ({error})")
            continue
        stream.clf.seen, stream.clf.frozen = facts["seen"], facts["frozen"]
        stream.clf.temperature = facts["temperature"]
        stream.clf.lineage = facts["lineage"]
        stream.seq = stream.kept = snapshot.seq
        break
    return notes


def _redo(store: Store, stream: Stream, notes: list[str]) -> str:
    """Do the events of the log again; a sentence if that cannot be."""
    connected, last, why = (
        bool(stream.kept),
        store.last(stream.id),
        "no good snapshot reaches the log",
    )
    for seq, event in store.log(stream.id, stream.seq):
        if seq != stream.seq + 1:
            if not connected:
                break
            notes.append(f"events {stream.seq + 1} to {seq - 1} are missing and were dropped")
        connected = True
        if event is None:
            notes.append(f"event {seq} is damaged and was dropped")
        else:
            try:
                stream.redo(event)
            except (OSError, MemoryError):  # the machine's, and no damage
                raise
            except Exception as error:  # whatever else it is, it stops no other stream
                text = str(error) if isinstance(error, AdteError) else brief(error)
                why = f"event {seq} cannot be done again ({text})"
                break
        stream.seq = seq
    if last <= stream.seq:
        return ""
    stream.clf.reset()
    stream.seq = last
    return f"{why}; reset the stream, or import a state"
