"""Logs, read back by the packages they are for."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from adte import InputError
from adte.core.errors import MissingExtra
from adte.evaluate.running.logs import open_log
from adte.evaluate.running.results import Conditions, Record

RECORD = Record(
    "adte / new",
    {"accuracy": 0.5, "tcr": [1, 2], "head": None, "by_domain": {"fog": 0.25}},
    Conditions(protocol="two-pass", method="adte", options={"beta": 0.5}, model="tiny",
               order_seed=3, images=4, classes=2),
)  # fmt: skip


def test_tensorboard(tmp_path):
    pytest.importorskip("tensorboard", reason="needs tensorboard, of the extra 'logs'")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    other = replace(RECORD.conditions, order_seed=4)
    still = replace(RECORD.conditions, protocol="online", stateful=False)
    with open_log(f"tensorboard:{tmp_path}") as log:
        log.record(RECORD)
        log.record(replace(RECORD, metrics={"accuracy": 0.75}, conditions=other))
        log.record(replace(RECORD, title="se", conditions=still))
    assert {p.name for p in tmp_path.iterdir()} == {"adte _ new, two-pass", "se"}
    events = EventAccumulator(str(tmp_path / "adte _ new, two-pass")).Reload()
    assert set(events.Tags()["scalars"]) == {"accuracy", "by_domain/fog"}
    assert [(e.step, e.value) for e in events.Scalars("accuracy")] == [(3, 0.5), (4, 0.75)]
    (first, _) = events.Tensors("protocol/text_summary")
    text = first.tensor_proto.string_val[0].decode()
    assert json.loads(text)["options"] == {"beta": 0.5}
    assert json.loads(text)["order_seed"] == 3


def test_long_titles_have_folders_of_their_own(tmp_path, monkeypatch):
    class Writer:
        def __init__(self, folder):
            Path(folder).mkdir()

        def __getattr__(self, name):
            return lambda *args: None

    tensorboard = SimpleNamespace(SummaryWriter=Writer)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", tensorboard)
    with open_log(f"tensorboard:{tmp_path}") as log:
        for end in "abb":
            log.record(replace(RECORD, title=300 * "x" + end))
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_wandb_offline(tmp_path, monkeypatch):
    pytest.importorskip("wandb", reason="needs wandb, of the extra 'logs'")
    for name, value in (("MODE", "offline"), ("DIR", str(tmp_path)), ("SILENT", "true")):
        monkeypatch.setenv(f"WANDB_{name}", value)
    with open_log("wandb:trial") as log:
        log.record(RECORD)
    (run,) = (tmp_path / "wandb").glob("offline-run-*/run-*.wandb")
    written = run.read_bytes()
    for word in (b"adte / new, two-pass", b"by_domain/fog", b"0.25", b"two-pass", b"beta"):
        assert word in written


def test_no_log_takes_records():
    with open_log(None) as log:
        log.record(RECORD)


@pytest.mark.parametrize(
    ("spec", "message"),
    [("paper:x", "unknown log 'paper'"), ("tensorboard", "tensorboard:FOLDER"),
     ("wandb:", "wandb:PROJECT")],
)  # fmt: skip
def test_bad_specs(spec, message):
    with pytest.raises(InputError, match=message):
        open_log(spec)


@pytest.mark.parametrize("name", ["tensorboard", "wandb"])
def test_missing_packages_name_the_extra(name, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(MissingExtra, match=r"adte\[logs\]"):
        open_log(f"{name}:x")
