"""A stream answers what a `Classifier` answers: the same images in the same order, bit for bit."""

from __future__ import annotations

import base64
import shutil
import sqlite3
from contextlib import closing

import pytest
import torch
from click.testing import CliRunner

from adte import Classifier, InputError, list_methods, load_model
from adte.cli import main
from adte.serve.client import ServiceError
from adte.serve.database import NAME
from adte.serve.jobs import Predict
from adte.serve.limits import Limits
from adte.serve.service import Service
from adte.serve.settings import Settings
from adte.serve.streams import Stream
from serving import CLASSES, classifier, jpeg, made, running, small

IMAGES = [jpeg(i) for i in range(12)]
ASKED = {"classes": CLASSES, "templates": "single", "views": 6, "seed": 0, "options": {}}


def open_stream(service: Service, method: str, protocol: str = "online") -> Stream:
    plan = Settings.of({**ASKED, "method": method, "protocol": protocol}, service.limits)
    stream = Stream.make("one", plan, service.model, "now", None, service.limits)
    service.engine.ask(lambda: service.writer.create(stream)).result(60)
    return stream


def ask(service: Service, *images: bytes, learn: bool = True) -> list[list[float]]:
    stream = service.writer.streams["one"]
    job = Predict(stream=stream, images=list(images), learn=learn, probs=True)
    return [p["probs"] for p in service.engine.submit(job).result(30)["predictions"]]


QUICK = ("tilt", "adte", "tda", "se", "tent")
METHODS = [pytest.param(m, marks=() if m in QUICK else pytest.mark.slow) for m in list_methods()]


@pytest.mark.parametrize("method", METHODS)
def test_any_method_with_restarts_and_crashes(method, tmp_path):
    model = small()
    expected = [p.probs.tolist() for p in classifier(model, method=method).predict(IMAGES)]
    service = Service(tmp_path / "a", model, snapshot=5, workers=1)
    open_stream(service, method)
    found = ask(service, IMAGES[0]) + ask(service, *IMAGES[1:4])
    service.close()  # in good order
    service = Service(tmp_path / "a", model, snapshot=5, workers=1)
    found += ask(service, IMAGES[4]) + ask(service, IMAGES[5], IMAGES[6]) + ask(service, IMAGES[7])
    shutil.copytree(tmp_path / "a", tmp_path / "b")  # the disk as a power cut leaves it
    after = ask(service, IMAGES[8])
    service.close()
    service = Service(tmp_path / "b", model, snapshot=5, workers=1)
    assert service.notes == []
    assert ask(service, IMAGES[8]) == after
    found += after
    for image in IMAGES[9:]:
        found += ask(service, image)
    assert service.writer.streams["one"].clf.seen == len(IMAGES)
    service.close()
    assert found == expected


def test_asking_teaches_nothing(tmp_path):
    model = small()
    with running(tmp_path, model=model) as (client, _):
        stream, clf = made(client), classifier(model)
        stream.predict(IMAGES[0])
        clf.predict(IMAGES[0])
        for image in IMAGES[:5]:
            assert not stream.predict(image, learn=False).learned
        assert stream.predict(IMAGES[1], probs=True).probs == clf.predict(IMAGES[1]).probs.tolist()
        assert stream.facts()["seen"] == stream.facts()["seq"] == 2


def test_episodic_forgets_and_frozen_learns_nothing(tmp_path):
    model = small()
    fresh = [classifier(model).predict(image).probs.tolist() for image in IMAGES[:4]]
    with running(tmp_path, model=model) as (client, _):
        episodic = made(client, "episodic", protocol="episodic")
        assert [episodic.predict(i, probs=True).probs for i in IMAGES[:4]] == fresh
        assert episodic.predict(IMAGES[0], probs=True, learn=False).probs == fresh[0]
        assert episodic.facts()["seen"] == 4
        frozen = made(client, "frozen", protocol="frozen")
        assert [frozen.predict(i, probs=True).probs for i in IMAGES[:4]] == fresh
        assert frozen.facts()["seen"] == 0
        frozen.unfreeze()
        frozen.predict(IMAGES[0])
        assert frozen.facts()["seen"] == 1


@pytest.mark.parametrize("method", ["tilt", "tda"])
def test_an_episodic_stream_begins_anew_with_the_state_that_it_was_given(tmp_path, method):
    warm = classifier(method=method)
    warm.predict([jpeg(i) for i in range(3)])
    warm.save(tmp_path / "warm.adte")
    service = Service(tmp_path / "s", warm.model, workers=1)
    stream = open_stream(service, method, "episodic")
    stream.change("state", (tmp_path / "warm.adte").read_bytes())
    before = stream.clf.method.state_dict()
    anew = []
    for image in (jpeg(7), jpeg(8)):
        clf = classifier(warm.model, method=method)
        assert clf.predict(image).probs.tolist() != warm.predict(image, learn=False).probs.tolist()
        clf.load_state(tmp_path / "warm.adte")
        anew.append(clf.predict(image).probs.tolist())
    for learn, seen in ((False, 3), (True, 5)):
        assert ask(service, jpeg(7), jpeg(8), learn=learn) == anew
        after = stream.clf.method.state_dict()
        assert stream.clf.seen == seen
        assert all(torch.equal(before[k], after[k]) for k in before)
    service.close()


def test_export_and_import(tmp_path):
    model = small()
    with running(tmp_path / "s", model=model) as (client, _):
        one = made(client, "one")
        for image in IMAGES[:5]:
            one.predict(image)
        file = tmp_path / "one.adte"
        file.write_bytes(one.export())
        two = made(client, "two")
        assert two.take_over(file)["seen"] == 5
        three = made(client, "three", state=base64.b64encode(file.read_bytes()).decode())
        here = classifier(model)
        here.load_state(file)
        expected = here.predict(IMAGES[6]).probs.tolist()
        for stream in (one, two, three):
            assert stream.predict(IMAGES[6], probs=True).probs == expected
        four = made(client, "four", start=base64.b64encode(file.read_bytes()).decode())
        assert four.facts()["seen"] == 0
        other = classifier(model)
        other.load_state(file)
        other.begin()
        assert four.predict(IMAGES[6], probs=True).probs == other.predict(IMAGES[6]).probs.tolist()
        with pytest.raises(ServiceError, match="give one of them"):
            made(client, "five", start="QUJD", state="QUJD")
    with running(tmp_path / "s", model=model) as (client, service):
        assert service.notes == []
        expected = here.predict(IMAGES[7]).probs.tolist()
        for id in ("one", "two", "three"):
            assert client.stream(id).predict(IMAGES[7], probs=True).probs == expected
        expected = other.predict(IMAGES[7]).probs.tolist()
        assert client.stream("four").predict(IMAGES[7], probs=True).probs == expected


def test_a_frozen_state_stays_frozen(tmp_path):
    clf = classifier()
    clf.predict(IMAGES[:3])
    clf.freeze()
    file, ids = clf.save(tmp_path / "frozen.adte"), ("start", "state", "taken")

    def all_are(client, frozen: bool, seq: int) -> None:
        facts = [client.stream(id).facts() for id in ids]
        assert [(f["frozen"], f["seq"]) for f in facts] == [(frozen, seq)] * 3

    with running(tmp_path / "s") as (client, _):
        made(client, "start", start=file)
        made(client, "state", state=file)
        assert made(client, "taken").take_over(file, key="k")["frozen"]
        assert client.stream("taken").take_over(file, key="k")["repeated"]
        all_are(client, True, 2)
        found = client.stream("state").predict(IMAGES[3], probs=True)
        assert (found.learned, found.probs) == (False, clf.predict(IMAGES[3]).probs.tolist())
        client.stream("start").predict(IMAGES[3]), client.stream("taken").predict(IMAGES[3])
        for name in ("log", "old"):
            shutil.copytree(tmp_path / "s", tmp_path / name)
        for id in ids:
            client.stream(id).unfreeze()
        assert client.stream("taken").predict(IMAGES[4]).learned
        shutil.copytree(tmp_path / "s", tmp_path / "thawed")
    for name, last in (("log", 3), ("old", 1)):
        with closing(sqlite3.connect(tmp_path / name / NAME)) as db, db:
            db.execute("DELETE FROM snapshots")
            db.execute("DELETE FROM log WHERE seq > ?", (last,))
    with running(tmp_path / "log") as (client, _):
        all_are(client, True, 3)
    with running(tmp_path / "old") as (client, _):  # as earlier versions have written
        all_are(client, False, 1)
    for name in ("thawed", "s"):
        with running(tmp_path / name) as (client, service):
            assert service.notes == []
            assert not any(client.stream(id).facts()["frozen"] for id in ids)


def test_an_export_is_the_same_to_the_byte_whatever_happens_to_the_service(tmp_path, monkeypatch):
    """What the stream began from is part of it: states that are merged count that once."""
    with running(tmp_path / "s") as (client, service):
        warm = made(client, "warm")
        warm.predict_many(IMAGES[:3])
        stream = made(client, start=warm.export())
        stream.predict(IMAGES[3])
        export = stream.export()
        with monkeypatch.context() as patch:
            patch.setattr(service.writer.store, "renew", lambda *_: 1 / 0)
            with pytest.raises(ServiceError):
                stream.reset()
        assert stream.export() == export
        shutil.copytree(tmp_path / "s", tmp_path / "dead")
    for folder in ("dead", "s"):  # from the log, and from a snapshot
        with running(tmp_path / folder) as (client, _):
            assert client.stream("shop").export() == export
    (tmp_path / "shop.adte").write_bytes(export)
    clf = classifier()
    clf.load_state(tmp_path / "shop.adte")
    assert clf.lineage.all


def test_a_calibrated_state_keeps_its_temperature(tmp_path):
    model = small()
    clf = classifier(model)
    clf.learn(IMAGES[:3])
    clf.temperature = 0.5
    clf.save(tmp_path / "warm.adte")
    with running(tmp_path / "s", model=model) as (client, _):
        stream = made(client)
        assert stream.facts()["temperature"] == 1
        assert stream.take_over(tmp_path / "warm.adte")["temperature"] == 0.5
        odd = (tmp_path / "warm.adte").read_bytes()[:-4]
        with pytest.raises(ServiceError):
            stream.take_over(odd)
        got = stream.predict(IMAGES[4], probs=True).probs
        assert got == clf.predict(IMAGES[4]).probs.tolist()
    for _ in range(2):  # from the log, then from the snapshot of the end
        with running(tmp_path / "s", model=model) as (client, _):
            stream = client.stream("shop")
            assert stream.facts()["temperature"] == 0.5
            got = stream.predict(IMAGES[5], probs=True).probs
            assert got == clf.predict(IMAGES[5]).probs.tolist()


def test_a_stream_is_calibrated_over_http(tmp_path):
    model = small()
    clf = classifier(model)
    clf.learn(IMAGES[:3])
    truths = [CLASSES[i % 4] for i in range(8)]
    with running(tmp_path / "s", model=model, limits=Limits(max_images=3)) as (client, _):
        stream = made(client)
        stream.predict_many(IMAGES[:3])
        clf.freeze()  # its answers as they are, as the service gives them
        found = clf.calibrate(IMAGES[:8], truths)
        clf.unfreeze()
        for _ in range(2):  # the second time, too, by what the method itself says
            got = stream.calibrate(IMAGES[:8], truths)
            assert got.temperature == pytest.approx(found.temperature)
            assert got.before == pytest.approx(found.before)
        assert stream.facts()["seen"] == 3
        for value in ("0", "-1", "nan", "inf", "1e9", "warm", ""):
            with pytest.raises(ServiceError) as refused:
                client.call("POST", f"/v1/streams/shop/temperature?value={value}", b"")
            assert refused.value.status == 422
        with pytest.raises(InputError, match="8 images have 1 labels"):
            stream.calibrate(IMAGES[:8], ["cat"])
        for nothing in ([], "photo.jpg"):
            with pytest.raises(InputError, match="a list of images"):
                stream.calibrate(nothing, [])
        want = clf.predict(IMAGES[9], learn=False).probs
        got = stream.predict(IMAGES[9], probs=True, learn=False).probs
        assert got == pytest.approx(want.tolist())
    with running(tmp_path / "s", model=model) as (client, _):
        again = client.stream("shop").predict(IMAGES[9], probs=True, learn=False).probs
        assert again == got


def test_states_of_python_and_of_the_command_line_start_a_stream(tmp_path):
    """All say the same prompts, whatever they call them."""
    (tmp_path / "in").mkdir()
    for i in range(3):
        (tmp_path / "in" / f"{i}.jpg").write_bytes(IMAGES[i])
    clf = Classifier("tiny", ["cat", "dog"], views=4)
    for image in IMAGES[:3]:
        clf.predict(image)
    clf.save(tmp_path / "python.adte")
    learn = ["learn", str(tmp_path / "in"), "--classes", "cat, dog", "--views", "4"]
    done = CliRunner().invoke(main, [*learn, "--state", str(tmp_path / "line.adte")])
    assert done.exit_code == 0, done.output
    clf.begin()
    expected = clf.predict(IMAGES[4]).probs.tolist()
    asked = {"classes": ["cat", "dog"], "views": 4}
    with running(tmp_path / "s", model=load_model("tiny").eval()) as (client, _):
        for name in ("python", "line"):
            warm = base64.b64encode((tmp_path / f"{name}.adte").read_bytes()).decode()
            for i, more in enumerate(
                ({}, {"templates": "single"}, {"templates": "a photo of a {}."})
            ):
                stream = client.create(**asked, **more, id=f"{name}-{i}", start=warm)
                assert stream.facts()["seen"] == 0
                assert stream.predict(IMAGES[4], probs=True).probs == expected
            assert client.create(**asked, id=name, state=warm).facts()["seen"] == 3


@pytest.mark.parametrize("method", ["zero-shot", "zero", "tda", "mta", "dpe"])
def test_every_method_explains_all_views(method, tmp_path):
    """Zero-shot measures its one view; the page asks it for all."""
    with running(tmp_path, model=small()) as (client, _):
        p = made(client, method=method, views=6).predict(jpeg(50, 60, 40), explain=True)
    assert len(p.explain["views"]) == 6
    assert all(v["entropy"] > -1e-6 for v in p.explain["views"])


@pytest.mark.parametrize("method", ["tilt", "adte"])
def test_explanation(method, tmp_path):
    model, photo = small(), jpeg(50, 60, 40)
    with running(tmp_path, model=model) as (client, _):
        stream, clf = made(client, method=method), classifier(model, method=method)
        for image in IMAGES[:3]:
            stream.predict(image)
            clf.predict(image)
        p = stream.predict(photo, learn=False, probs=True, explain=True, thumbnails=16)
    e, here = p.explain, clf.freeze().predict(photo)
    views = e["views"]
    assert e["image"] == {"width": 60, "height": 40}
    assert e["measure"] == {"tilt": "shannon", "adte": "adaptive"}[method]
    assert {i for i, v in enumerate(views) if v["kept"]} == set(here.kept.tolist())
    assert [v["entropy"] for v in views] == here.entropy.tolist()
    assert sum(v["weight"] for v in views) == pytest.approx(1)
    assert all(v["weight"] == 0 for i, v in enumerate(views) if not v["kept"] and i)
    assert e["prior"] == here.prior.tolist()
    assert e["q"] == (None if here.q is None else here.q.tolist())
    assert e["methods"][method] == here.probs.tolist() == p.probs
    for name in ("se", "zero-shot"):
        alone = classifier(model, method=name).predict(photo)
        assert e["methods"][name] == alone.probs.tolist()
    # the boxes are those of the views
    crops = clf.views.plan(clf.pipeline.decode(photo), clf.model.preprocess)
    base = (0, 10, 40, 40, False)  # top, left, height, width: the central square
    assert [tuple(v["box"].values()) for v in views] == [base, *map(tuple, crops)]
    for view in views:
        box = view["box"]
        assert 0 <= box["left"] < box["left"] + box["width"] <= 60
        assert 0 <= box["top"] < box["top"] + box["height"] <= 40
        assert view["thumbnail"].startswith("data:image/jpeg;base64,")


def test_images_of_several_streams_go_through_the_tower_together(tmp_path):
    """As on a GPU, where one pass takes many; streams of other views are not mixed in."""
    model = small()
    service = Service(tmp_path, model, workers=2, window=0.05)
    passes = []
    service.engine.group = 4
    through = service.engine._through
    service.engine._through = lambda ready: (passes.append(len(ready)), through(ready))
    for id, views in (("one", 6), ("two", 6), ("odd", 3)):
        plan = Settings.of({**ASKED, "views": views, "method": "tilt", "protocol": "online"},
                           service.limits)  # fmt: skip
        stream = Stream.make(id, plan, model, "now", None, service.limits)
        service.engine.ask(lambda stream=stream: service.writer.create(stream)).result(60)
    order = ["one", "two", "one", "two", "odd", "one", "odd", "odd", "two"]
    jobs = [
        Predict(stream=service.writer.streams[id], images=[IMAGES[i]], probs=True)
        for i, id in enumerate(order)
    ]
    found = [f.result(30) for f in [service.engine.submit(job) for job in jobs]]
    service.close()
    assert sum(passes) == len(order)
    assert passes[0] == 4
    assert max(passes) <= 4
    for id, views in (("one", 6), ("two", 6), ("odd", 3)):
        clf = classifier(model, views=views)
        mine = [i for i, name in enumerate(order) if name == id]
        assert [found[i]["seq"] for i in mine] == list(range(1, len(mine) + 1))
        for i in mine:
            probs = torch.tensor(found[i]["predictions"][0]["probs"])
            torch.testing.assert_close(probs, clf.predict(IMAGES[i]).probs, rtol=1e-3, atol=1e-4)
