"""Extraction on a cluster: with as many threads the shards of one machine, whatever dies."""

from __future__ import annotations

import os
import random
import shutil
import threading

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from adte import InputError
from adte.cli import main
from adte.evaluate.features.cache import extract as plain
from clusters import NAMES, live, same_files

pytest.importorskip("ray")

from adte.cluster.connect import ClusterOptions
from adte.cluster.extract import extract
from adte.cluster.worker import Tower

pytestmark = pytest.mark.slow
KILLS = int(os.environ.get("ADTE_KILLS", "3"))


def by_cluster(stream, folder, **said):
    tower = said.pop("tower", None) or Tower.itself(stream.model)
    options = ClusterOptions(chunk=said.pop("chunk", 7), **said.pop("options", {}))
    return extract(stream, folder, shard=16, tower=tower, options=options, **said)


@pytest.mark.parametrize("options", [{"workers": 1}, {}], ids=str)
def test_shards_are_those_of_one_machine(nodes, tmp_path, options):
    broken = (3, 17)
    plain(live(50, broken=broken), tmp_path / "plain", shard=16)
    ticks = []
    cache = by_cluster(
        live(50, broken=broken), tmp_path / "ray", options=options, tick=ticks.append
    )
    assert same_files(tmp_path / "plain", tmp_path / "ray")
    assert [s.id for s in cache.skipped] == ["00003", "00017"]
    assert sum(ticks) == 48


def test_it_goes_on_where_it_was(nodes, tmp_path):
    plain(live(50), tmp_path / "plain", shard=16)

    class Stop(Exception):
        pass

    def stop(images, seen=[0]):  # noqa: B006
        seen[0] += images
        if seen[0] == 20:
            raise Stop

    with pytest.raises(Stop):
        by_cluster(live(50), tmp_path / "ray", tick=stop, options={"workers": 1})
    assert [p.name for p in sorted((tmp_path / "ray").glob("shard*"))] == [
        "shard-00000.safetensors"
    ]
    shutil.copy(tmp_path / "plain" / "shard-00002.safetensors", tmp_path / "ray")  # 1 and 3 lack
    by_cluster(live(50), tmp_path / "ray", options={"workers": 1})
    assert same_files(tmp_path / "plain", tmp_path / "ray")


def test_killed_workers_and_nodes_cost_nothing(nodes, tmp_path):
    rng = random.Random(0)
    count = 40 * KILLS
    plain(live(count), tmp_path / "plain", shard=16)
    ticks, failed = [], []

    def work():
        try:
            by_cluster(live(count, seconds=0.15), tmp_path / "ray", chunk=4, tick=ticks.append)
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    killed = []
    while thread.is_alive() and len(killed) < KILLS:
        thread.join(rng.uniform(0.5, 2))
        if not thread.is_alive():
            break
        if len(killed) % 3 == 2:  # the last: another may take its time to come
            nodes.kill_node(rng)
            killed.append("node")
        elif nodes.kill_worker("Remote", rng):
            killed.append("worker")
    thread.join()
    assert not failed, failed
    assert len(killed) == KILLS, killed
    assert same_files(tmp_path / "plain", tmp_path / "ray")
    assert sum(ticks) == count


@pytest.mark.parametrize(("name", "said"), [("tiny", "fingerprint"), ("gone", "unknown model")])
def test_a_worker_without_the_weights_is_one_sentence(nodes, tmp_path, name, said):
    with pytest.raises(InputError, match=f"^a worker on .* cannot work: .*{said}"):
        by_cluster(live(20), tmp_path / "c", tower=Tower(name, "0"), options={"workers": 1})
    assert not list((tmp_path / "c").glob("shard*"))


def test_the_command_line_writes_the_same_cache(nodes, tmp_path):
    rng = np.random.default_rng(0)
    for i in range(12):
        folder = tmp_path / "photos" / NAMES[i % 3]
        folder.mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 256, (70, 90, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{i}.png")
    asked = ["extract", "--data", f"folder:{tmp_path / 'photos'}", "--views", "4", "--workers", "0"]
    for out, more in (("here", []), ("there", ["--engine", "ray", "--cluster-workers", "1"])):
        found = CliRunner().invoke(main, [*asked, "--out", str(tmp_path / out), *more])
        assert found.exit_code == 0, found.output
    assert same_files(tmp_path / "here", tmp_path / "there")


def test_a_mended_image_is_taken_in(nodes, tmp_path):
    plain(live(20), tmp_path / "plain", shard=16)
    plain(live(20, broken=(3,)), tmp_path / "ray", shard=16)
    assert by_cluster(live(20), tmp_path / "ray", options={"workers": 1}).skipped == []
    assert same_files(tmp_path / "plain", tmp_path / "ray")
