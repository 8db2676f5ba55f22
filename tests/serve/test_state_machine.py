"""Random requests to several streams against a model of the service: one `Classifier` each.

Restarts, crashes, retries and tokens are among them. States never mix, and nothing is lost.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
)

import adte
from adte.serve.access import Access
from adte.serve.client import Client, RemoteStream, ServiceError
from adte.serve.packing import dump, load_into
from serving import CLASSES, classifier, jpeg, running, small

ADMIN = "the-administrator's-token"
MODEL = small()
PHOTOS = [jpeg(i) for i in range(6)]
METHODS = ("tilt", "tda", "se", "adte")


class Machine(RuleBasedStateMachine):
    streams = Bundle("streams")

    @initialize()
    def begin(self) -> None:
        self.folder, self.lives = Path(tempfile.mkdtemp(prefix="adte-test-")), 0
        self.known: dict[str, adte.Classifier] = {}
        self.tokens: dict[str, str] = {}
        self.seq: dict[str, int] = {}
        self.keys: dict[tuple[str, str], tuple[int, list[float]]] = {}
        self._start(self.folder / "0")

    def _start(self, place: Path) -> None:
        self.place = place
        self.context = running(place, model=MODEL, access=Access(ADMIN, True), snapshot=3)
        client, self.service = self.context.__enter__()
        self.admin = Client(client.url, ADMIN, retries=0)
        assert self.service.notes == []

    def _end(self) -> None:
        self.admin.close()
        self.context.__exit__(None, None, None)

    def teardown(self) -> None:
        if hasattr(self, "context"):
            self._end()
            shutil.rmtree(self.folder)

    def stream(self, id: str) -> RemoteStream:
        return RemoteStream(self.admin, id, self.tokens[id])

    @rule(target=streams, method=st.sampled_from(METHODS), name=st.sampled_from("abc"))
    def create(self, method: str, name: str):
        if name in self.known:
            with pytest.raises(ServiceError) as error:
                self.admin.create(CLASSES, id=name, method=method, views=4)
            assert error.value.status == 409
            return multiple()
        made = self.admin.create(CLASSES, id=name, method=method, views=4)
        self.known[name] = classifier(MODEL, method=method, views=4)
        self.tokens[name], self.seq[name] = made.token, 0
        return name

    @rule(target=streams, warm=streams, name=st.sampled_from("abc"))
    def create_from_another(self, warm: str, name: str):
        if warm not in self.known or name in self.known:
            return multiple()
        method, state = self.known[warm].method.name, self.stream(warm).export()
        made = self.admin.create(CLASSES, id=name, method=method, views=4, start=state)
        self.known[name] = clf = classifier(MODEL, method=method, views=4)
        load_into(clf, state)
        clf.begin()
        clf.frozen = self.known[warm].frozen  # by an event of its own
        self.tokens[name], self.seq[name] = made.token, 1 + clf.frozen
        return name

    @rule(id=streams, photos=st.lists(st.sampled_from(range(6)), min_size=1, max_size=3))
    def teach(self, id: str, photos: list[int]) -> None:
        if id not in self.known:
            return
        clf = self.known[id]
        found = self.stream(id).predict_many([PHOTOS[i] for i in photos], probs=True)
        expected = clf.predict([PHOTOS[i] for i in photos])
        self.seq[id] += 1
        assert [p.probs for p in found] == [p.probs.tolist() for p in expected]
        assert {(p.seq, p.seen) for p in found} == {(self.seq[id], clf.seen)}

    @rule(id=streams, photo=st.sampled_from(range(6)), key=st.sampled_from(("k1", "k2")))
    def teach_with_a_key(self, id: str, photo: int, key: str) -> None:
        if id not in self.known:
            return
        if (id, key) in self.keys:
            old, probs = self.keys[id, key]
            if old == photo:
                found = self.stream(id).predict(PHOTOS[photo], key=key, probs=True)
                assert found.repeated
                assert found.probs == probs
            else:
                with pytest.raises(ServiceError) as error:
                    self.stream(id).predict(PHOTOS[photo], key=key)
                assert error.value.code == "key"
            return
        found = self.stream(id).predict(PHOTOS[photo], key=key, probs=True)
        assert found.probs == self.known[id].predict(PHOTOS[photo]).probs.tolist()
        self.seq[id] += 1
        self.keys[id, key] = photo, found.probs

    @rule(id=streams, photo=st.sampled_from(range(6)))
    def ask(self, id: str, photo: int) -> None:
        if id not in self.known:
            return
        clf = self.known[id]
        frozen, clf.frozen = clf.frozen, True
        expected = clf.predict(PHOTOS[photo]).probs.tolist()
        clf.frozen = frozen
        found = self.stream(id).predict(PHOTOS[photo], learn=False, probs=True)
        assert found.probs == expected

    @rule(id=streams, broken=st.binary(max_size=40))
    def break_a_picture(self, id: str, broken: bytes) -> None:
        if id not in self.known:
            return
        with pytest.raises(ServiceError) as error:
            self.stream(id).predict_many([PHOTOS[0], broken])
        assert error.value.status in (415, 422)

    @rule(id=streams, how=st.sampled_from(("freeze", "unfreeze", "reset")))
    def change(self, id: str, how: str) -> None:
        if id not in self.known:
            return
        getattr(self.stream(id), how)()
        getattr(self.known[id], how)()
        self.seq[id] += 1

    @rule(id=streams, value=st.sampled_from((0.5, 1.0, 3.0)))
    def set_the_temperature(self, id: str, value: float) -> None:
        if id not in self.known:
            return
        path = f"/v1/streams/{id}/temperature?value={value}"
        self.admin.call("POST", path, b"", token=self.tokens[id])
        self.known[id].temperature = value
        self.seq[id] += 1

    @rule(id=streams, other=streams)
    def copy_a_state(self, id: str, other: str) -> None:
        if id not in self.known or other not in self.known:
            return
        data = self.stream(id).export()
        mine, theirs = self.known[id], self.known[other]
        if mine.method.name != theirs.method.name:
            with pytest.raises(ServiceError) as error:
                self.stream(other).take_over(data)
            assert error.value.code == "state"
            return
        self.stream(other).take_over(data)
        load_into(theirs, data)
        self.seq[other] += 1

    @rule(id=streams, other=streams)
    def try_the_wrong_token(self, id: str, other: str) -> None:
        if id not in self.known or other not in self.known or id == other:
            return
        wrong = Client(self.admin.url, self.tokens[other], retries=0)
        for ask in (
            lambda s: s.predict(PHOTOS[0]), lambda s: s.state(), lambda s: s.reset(),
            lambda s: s.export(), lambda s: s.delete(),
        ):  # fmt: skip
            with pytest.raises(ServiceError) as error:
                ask(wrong.stream(id))
            assert error.value.status == 404
        wrong.close()

    @rule(id=consumes(streams))
    def delete(self, id: str) -> None:
        if id not in self.known:
            return
        self.stream(id).delete()
        for table in (self.known, self.tokens, self.seq):
            del table[id]
        self.keys = {k: v for k, v in self.keys.items() if k[0] != id}

    @rule()
    def restart(self) -> None:
        self._end()
        self._start(self.place)

    @rule()
    def crash(self) -> None:
        """What is on the disk now is all that is left."""
        self.lives += 1
        place = self.folder / str(self.lives)
        shutil.copytree(self.place, place)
        self._end()
        shutil.rmtree(self.place)
        self._start(place)

    @invariant()
    def facts_agree(self) -> None:
        if not hasattr(self, "known"):
            return
        found = {f["id"]: f for f in self.admin.streams()}
        assert found.keys() == self.known.keys()
        for id, clf in self.known.items():
            assert (found[id]["seen"], found[id]["frozen"]) == (clf.seen, clf.frozen)
            assert (found[id]["seq"], found[id]["temperature"]) == (self.seq[id], clf.temperature)
            assert self.stream(id).export() == dump(clf)


QUIET = [HealthCheck.too_slow, HealthCheck.data_too_large]


class TestMany(Machine.TestCase):
    settings = settings(
        max_examples=8, stateful_step_count=25, deadline=None, suppress_health_check=QUIET
    )


TestMany.pytestmark = [pytest.mark.slow]
TestFew = Machine.TestCase
TestFew.settings = settings(
    max_examples=2, stateful_step_count=8, deadline=None, suppress_health_check=QUIET
)
