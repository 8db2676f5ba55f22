"""A job of a cluster beside one of this machine: the same refusals and notes. No Ray runs here."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from adte import InputError
from adte.cluster import label
from adte.cluster.label import ClusterJob
from adte.core.errors import MissingExtra
from adte.data import places
from adte.label import Job, Listener, Report, Wanted
from predicting import picture, pictures, rows, settle

WANTED = Wanted(["cat", "dog", "car"], views=2)
BOTH = pytest.mark.parametrize("kind", [Job, ClusterJob])


@pytest.fixture(autouse=True)
def at_home(monkeypatch, tmp_path):
    """A folder to work in, and a cluster whose only worker is this process."""
    settle(monkeypatch, tmp_path)

    @contextmanager
    def here(options):
        yield None

    monkeypatch.setattr(label, "connected", here)
    monkeypatch.setattr(ClusterJob, "_pooled", lambda self, ray, clf, stack: clf.pipeline)


class Notes(Listener):
    def __init__(self) -> None:
        self.said: list[str] = []

    def note(self, text: str) -> None:
        self.said.append(text)


def refused(job: Job) -> str:
    with pytest.raises(InputError) as caught:
        job.run()
    return str(caught.value)


# --------------------------------------------------------------------------- as on one machine


@pytest.mark.parametrize("asked", [
    {"min_confidence": 7.0}, {"min_confidence": float("nan")}, {"wait": -3.0}, {"inputs": ["gone"]},
    {"state": "-"}, {"out": "photos/000.png", "force": True},
])  # fmt: skip
def test_what_one_machine_refuses_a_cluster_refuses(asked):
    pictures(Path("photos"), 1)
    here = Job(["photos/000.png"], WANTED)
    there = ClusterJob(["photos/000.png"], WANTED)
    assert refused(replace(there, **asked)) == refused(replace(here, **asked))
    assert [p.name for p in Path().iterdir()] == ["photos"]


@BOTH
def test_notes_come(kind):
    images = [str(p) for p in pictures(Path("photos"), 2)]
    clf = WANTED.new()
    clf.predict(images[0])
    clf.freeze()
    clf.save("frozen.adte")
    notes = Notes()
    kind(images, Wanted(), state="frozen.adte").run(notes)
    assert notes.said == ["this state is frozen: images are labelled, nothing is learned"]


# --------------------------------------------------------------------------- a job that is refused


def unreachable(job, monkeypatch):
    @contextmanager
    def nobody(options):
        raise InputError("the Ray cluster cannot be reached")
        yield

    monkeypatch.setattr(label, "connected", nobody)
    return job


def crowded(job, monkeypatch):
    def no_room(*args):
        raise InputError("the cluster has 0 CPUs")

    monkeypatch.setattr(ClusterJob, "_pooled", no_room)
    return job


def of_pixels(job, monkeypatch):
    return replace(job, wanted=replace(WANTED, method="memo"))


def of_auto(job, monkeypatch):
    return replace(job, wanted=replace(WANTED, views="auto"))


@pytest.mark.parametrize("spoil", [unreachable, crowded, of_pixels, of_auto])
def test_a_refused_job_leaves_the_output_as_it_was(spoil, monkeypatch):
    pictures(Path("photos"), 3)
    job = ClusterJob(["photos"], WANTED, out="o.csv")
    job.run()
    assert len(rows(Path("o.csv"))) == 3
    before = [Path(name).read_bytes() for name in ("o.csv", "o.csv.adte")]
    refused(spoil(replace(job, force=True), monkeypatch))
    assert [Path(name).read_bytes() for name in ("o.csv", "o.csv.adte")] == before


# --------------------------------------------------------------------------- Parquet


@pytest.fixture
def parquet():
    return pytest.importorskip("pyarrow.parquet")


def table(parquet, target: Path, **columns) -> bytes:
    import pyarrow

    parquet.write_table(pyarrow.table(columns), target)
    return target.read_bytes()


@BOTH
@pytest.mark.parametrize("form", ["{}", "file://{}", "link"])
def test_an_input_is_never_written_over(parquet, kind, form, tmp_path):
    path = tmp_path / "images.parquet"
    before = table(parquet, path, image=[picture(tmp_path / "a.png").read_bytes()])
    out = path
    if form == "link":
        out = tmp_path / "link.parquet"
        out.symlink_to(path)
    for force in (False, True):
        name = form.format(path) if "{" in form else str(path)
        job = kind([name], WANTED, out=str(out), force=force)
        assert "an input is never written over" in refused(job)
    assert path.read_bytes() == before
    assert not Path("images.parquet.jsonl").exists()


@BOTH
def test_a_table_of_others_needs_force(parquet, kind, tmp_path):
    """Many begin with a path and a label."""
    images, out = [str(p) for p in pictures(tmp_path / "photos", 2)], tmp_path / "o.parquet"
    before = table(parquet, out, path=["a.jpg"], label=["cat"], seen=[1])
    job = kind(images, WANTED, out=str(out))
    assert "is not an output of adte; give another name, or --force" in refused(job)
    assert out.read_bytes() == before
    replace(job, force=True).run()
    assert parquet.read_table(out).column("path").to_pylist() == images


def test_rows_of_a_table_do_not_go_with_those_beside_it(parquet, tmp_path):
    """Without them another run wrote its own rows over the table."""
    first, other = (str(p) for p in pictures(tmp_path / "photos", 2))
    Job([first], WANTED, out="o.parquet").run()
    Path("o.parquet.jsonl").unlink()
    Path("o.parquet.adte").unlink()
    with pytest.raises(InputError, match=r"holds rows, but 'o.parquet.jsonl', .* is gone; put it"):
        Job([other], WANTED, out="o.parquet").run()
    assert parquet.read_table("o.parquet").column("path").to_pylist() == [first]
    Job([other], WANTED, out="o.parquet", force=True).run()
    assert parquet.read_table("o.parquet").column("path").to_pylist() == [other]


@BOTH
def test_what_lies_in_an_input_folder_stays_unless_it_is_ours(parquet, kind, tmp_path):
    photos = pictures(tmp_path / "photos", 2)[0].parent
    out = photos / "o.parquet"
    job = kind([str(photos)], WANTED, out=str(out))
    job.run()
    picture(photos / "more.png", 7)
    job.run()  # goes on
    assert parquet.read_table(out).num_rows == 3
    before = table(parquet, out, mine=[1])
    assert "exists in the input folder" in refused(replace(job, force=True))
    assert out.read_bytes() == before


@BOTH
@pytest.mark.parametrize("option", ["json_to", "state"])
def test_two_outputs_are_two_files(parquet, kind, option):
    pictures(Path("photos"), 1)
    job = kind(["photos"], WANTED, out="o.parquet", **{option: "./o.parquet"})
    assert "are the same file" in refused(job)
    assert os.listdir() == ["photos"]


@pytest.mark.parametrize("form", ["address", "table"])
def test_images_elsewhere_are_labelled_here(parquet, form):
    """By an address, or in a table; the answers are those of the folder."""
    images = pictures(Path("photos"), 3)
    Job(["photos"], WANTED, out="here.csv").run()
    place = Path("photos").absolute().as_uri()
    if form == "table":
        place = "images.parquet"
        table(parquet, Path(place), image=[p.read_bytes() for p in images])
    job = Job([place], WANTED, out="there.parquet")
    job.run()
    here, there = rows(Path("here.csv")), parquet.read_table("there.parquet").to_pylist()
    assert [r["label"] for r in there] == [r["label"] for r in here]
    assert [r["confidence"] for r in there] == [float(r["confidence"]) for r in here]
    assert all(r["path"].startswith(place) for r in there)
    again = replace(job, report=Report())
    again.run()
    assert again.report.before == 3
    assert "no files here" in refused(Job([place], WANTED, sort_into="sorted"))


def test_an_address_that_leads_nowhere_costs_no_other_input(parquet):
    picture(Path("a.png"))
    job = Job(["file:///nowhere", "a.png"], WANTED, out="o.csv")
    job.run()
    assert [(r["path"], bool(r["error"])) for r in rows(Path("o.csv"))] == [
        ("file:///nowhere", True), ("a.png", False),
    ]  # fmt: skip
    assert "named twice" in refused(Job(["-", "-", "file:///nowhere"], WANTED))


def test_without_arrow_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    places._file_system.cache_clear()
    with pytest.raises(MissingExtra, match=r"adte\[parquet\]"):
        Job(["s3://bucket/photos"], WANTED).run()
    pictures(Path("photos"), 1)
    with pytest.raises(MissingExtra, match=r"adte\[parquet\]"):
        Job(["photos"], WANTED, out="o.parquet").run()
    assert os.listdir() == ["photos"]
