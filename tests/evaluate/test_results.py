"""Records: typed, whole, the same after the way through JSON; damage is told in one sentence."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from adte import StateError
from adte.evaluate import Run
from adte.evaluate.running.results import FORMAT, Conditions, Record, Results, summarise

CONDITIONS = Conditions(
    protocol="two-pass",
    method="adte",
    options={"entropy.beta": 0.5},
    model="tiny",
    fingerprint="f4",
    dtype="float32",
    device="cpu",
    kernel="banded",
    prompts={"name": "single"},
    views={"count": 4, "seed": 1},
    view_seed=1,
    data={"datasets": [{"name": "made up"}]},
    order="shuffled",
    order_seed=2,
    part="first 3",
    images=3,
    classes=2,
    skipped=[{"id": "x", "reason": "truncated"}],
)


@pytest.fixture
def run() -> Run:
    return Run(
        method="adte",
        protocol="two-pass",
        options=CONDITIONS.options,
        labels=np.array([0, 1, 1]),
        predicted=np.array([0, 1, 0]),
        confidence=np.array([0.9, 0.6, 0.7]),
        truth=np.array([0.9, 0.6, 0.3]),
        rank=np.array([0, 0, 1]),
        entropy=np.array([0.1, 0.2, 0.3]),
        seconds=1.5,
        tcr=np.array([1.0, 2.0]),
        classes=2,
        ids=["ä/1.png", "b", "c"],
        domains=["fog", "fog", ""],
        groups=[-1, 0, 1],
        peak_memory=7,
    )


def kept(folder, run, **changes) -> tuple[Results, Record]:
    results = Results(folder)
    record = Record("adte", summarise(run), replace(CONDITIONS, **changes))
    return results, results.put("adte-1", run, record)


def test_a_run_comes_back_as_it_was(run, tmp_path):
    results, record = kept(tmp_path, run)
    assert record.path == tmp_path / "adte-1.json"
    assert results.get("adte-1") == record == next(iter(results))
    back = results.run(record)
    for name, value in vars(run).items():
        if isinstance(value, np.ndarray):
            np.testing.assert_allclose(getattr(back, name), value, rtol=1e-6)
        else:
            assert getattr(back, name) == value, name
    assert results.get("adte-2") is None


@pytest.mark.parametrize("letter", ["x", "ä", "日"])
def test_names_of_many_options_are_cut(letter, run, tmp_path):
    """As long as a file takes them they stay, so that runs of earlier versions are found."""
    fits = letter * (230 // len(letter.encode()))
    assert Results.key({"title": fits}).startswith(f"{fits}-")
    asked = [{"title": f"adte {fits}{letter}", "beta": beta} for beta in (1, 2)]
    one, two = map(Results.key, asked)
    assert one != two
    assert one.rpartition("-")[0] == two.rpartition("-")[0]
    results = Results(tmp_path)
    for key in (one, Results.key({"title": fits})):
        assert results.get(key) is None
        record = results.put(key, run, Record("adte", summarise(run), CONDITIONS))
        assert results.get(key) == record
    assert 95 < len(one.encode()) < 115


def test_the_json_is_what_users_know(run, tmp_path):
    _, record = kept(tmp_path, run)
    facts = json.loads(record.path.read_text("utf-8"))
    assert facts.keys() == {"format", "key", "title", "metrics", "protocol", "checksum"}
    assert facts["format"] == FORMAT
    assert facts["metrics"]["accuracy"] == pytest.approx(2 / 3)
    assert facts["protocol"]["order_seed"] == 2
    assert facts["protocol"]["versions"].keys() == {"adte", "torch", "python"}
    assert Record.from_json(facts) == record
    assert {k: facts[k] for k in record.to_json()} == record.to_json()


def test_a_record_that_was_damaged_or_altered_is_one_sentence(run, tmp_path):
    results, record = kept(tmp_path, run)
    whole = record.path.read_text("utf-8")
    facts = json.loads(whole)
    unsigned = {k: v for k, v in facts.items() if k not in ("checksum", "metrics")}
    for text, words in (
        (whole[:-9], "is damaged"),
        ("[" * 200_000, "is damaged"),
        (json.dumps({**facts, "title": "another"}), "was altered: its checksum does not fit"),
        (json.dumps(unsigned), "is damaged \\('metrics'\\)"),
        (json.dumps({"format": 2}), "format 2, this version reads 4; use another results"),
    ):
        record.path.write_text(text, "utf-8")
        for read in (lambda: list(results), lambda: results.get("adte-1")):
            with pytest.raises(
                StateError, match=rf"adte-1\.json' .*{words}.*delete it and run again"
            ):
                read()
    record.path.write_text(whole, "utf-8")
    other = record.path.with_name("adte-2.json")
    for name in ("json", "safetensors"):
        other.with_suffix(f".{name}").write_bytes(record.path.with_suffix(f".{name}").read_bytes())
    with pytest.raises(StateError, match="was written under another name"):
        list(results)
    other.with_suffix(".safetensors").unlink()
    assert list(results) == [record]  # a file without predictions is no run


def test_damaged_predictions_are_one_sentence(run, tmp_path):
    results, record = kept(tmp_path, run)
    path = tmp_path / "adte-1.safetensors"
    whole = path.read_bytes()
    flipped = bytearray(whole)
    start = 8 + int.from_bytes(whole[:8], "little")
    offset = json.loads(whole[8:start])["about"]["data_offsets"][0]
    flipped[start + offset] ^= 0xFF  # the first byte of the compressed names
    for damage in (whole[:-9], bytes(flipped), b""):
        path.write_bytes(damage)
        with pytest.raises(StateError, match=r"missing or damaged.*delete 'adte-1\.json' beside"):
            results.run(record)
