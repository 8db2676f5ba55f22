"""Tables: marks, formats, and figures that survive the way to CSV and back."""

from __future__ import annotations

import csv
import io
import json

import pytest

from adte import InputError
from adte.evaluate.report.tables import (
    Column,
    Grid,
    domains_table,
    rows_table,
    save_table,
    terminal_table,
)

UP = Column("accuracy", "acc.", "percent", "up")


def marks(values, best="up"):
    column = Column("x", "x", "percent", best)
    return Grid([column], [{"x": v} for v in values]).marks(column)


@pytest.mark.parametrize(
    ("values", "best", "expected"),
    [
        ([0.1, 0.3, 0.2], "up", ["", "best", "second"]),
        ([0.1, 0.3, 0.2], "down", ["best", "", "second"]),
        ([0.3, 0.3, 0.2, 0.2, 0.1], "up", ["best", "best", "second", "second", ""]),
        ([0.30001, 0.30002, 0.2], "up", ["best", "best", "second"]),  # 30.0 both, as shown
        ([None, 0.3, float("nan"), 0.2], "up", ["", "best", "", "second"]),
        ([0.3, 0.3], "up", ["", ""]),
        ([0.3, 0.1], None, ["", ""]),
        ([], "up", []),
    ],
)
def test_best_and_second(values, best, expected):
    assert marks(values, best) == expected


ROWS = [
    {
        "method": "a|b",
        "protocol": "stateless",
        "accuracy": 1 / 3,
        "ci95": [0.3, 0.4],
        "gain": -0.00001,
        "ece": 0.1,
        "head": None,
        "images_per_s": 250.0,
        "seconds": 0.004,
        "seeds": 2,
        "options": {"beta": 0.5},
    },
    {
        "method": "<c>",
        "protocol": "online",
        "accuracy": 0.5,
        "ci95": None,
        "gain": 0.1666,
        "ece": 0.2,
        "head": None,
        "images_per_s": 10.0,
        "seconds": 0.2,
        "seeds": 1,
        "options": {},
    },
]


def test_markdown_is_percent_with_one_decimal():
    head, rule, first, second, _, caption = rows_table(ROWS).to_markdown().splitlines()
    assert head == "| method | protocol | acc. | over SE | ECE | ms | seeds |"
    assert rule == "|:--|:--|--:|--:|--:|--:|--:|"
    assert first == r"| a\|b | — | *33.3* (30.0…40.0) | +0.0 | **10.0** | 4.0 | 2 |"
    assert second == r"| \<c> | online | **50.0** | +16.7 | *20.0* | 200.0 | 1 |"
    assert caption.startswith("Accuracies in %; behind them 95 % intervals over seeds")
    assert "ms: milliseconds per image, its views already encoded" in caption
    assert "head" not in caption  # no row has it
    single = rows_table(ROWS[1:])
    assert "seeds" not in single.to_markdown()  # in the caption neither
    assert "seeds" in single.to_csv()
    known = rows_table([{**ROWS[0], "peak_memory": 12.4e6, "p": 0.0001}]).to_markdown()
    assert "| < 0.001 |" in known
    assert "| 12 |" in known


def test_csv_is_raw_and_exact():
    lines = list(csv.DictReader(io.StringIO(rows_table(ROWS).to_csv())))
    assert float(lines[0]["accuracy"]) == 1 / 3
    assert (float(lines[0]["ci95_low"]), float(lines[0]["ci95_high"])) == (0.3, 0.4)
    assert lines[1]["ci95_low"] == ""
    assert float(lines[0]["gain"]) == -0.00001
    assert json.loads(lines[0]["options"]) == {"beta": 0.5}
    assert "head" not in lines[0]  # no row has it
    assert lines[0]["protocol"] == "stateless"
    columns = (Column("method"), Column("gain", "gain", "interval"))
    grid = Grid(columns, [{"method": "=1+1", "gain": [0.1, 0.2]}, {"method": "b"}])
    assert grid.to_csv() == "method,gain_low,gain_high\n'=1+1,0.1,0.2\nb,,\n"  # no formula
    assert grid.cells()[0][1][0] == "+10.0…+20.0"


def test_html_is_escaped_and_has_headings():
    rows = [{**r, "gain_best": 0.1} for r in ROWS]
    text = rows_table(rows, "a & b", "note <1>").to_html()
    assert "<c>" not in text
    assert "&lt;c&gt;" in text
    assert "<caption>a &amp; b</caption>" in text
    assert "note &lt;1&gt;" in text
    assert text.count("scope=row") == 2
    assert "<strong>50.0</strong>" in text
    assert "<em>33.3</em>" in text
    assert text.count("colspan=2") == 1
    assert text.count('<td class="interval">') == 2
    assert 'class="wide full"' in Grid([Column(c) for c in "abcdefgh"], [{"a": 1}]).to_html()


def test_the_terminal_has_the_columns_of_the_readme():
    row = {"method": "se", "protocol": "online", "accuracy": 0.5, "ci95": None, "seeds": 1,
           "gain_ci95": [-0.0781, 0.0375], "ece": 0.1, "head": 0.6, "middle": 0.5, "tail": 0.4,
           "seconds": 0.0012, "peak_memory": None}  # fmt: skip
    table = terminal_table([row], "few")
    titles = [c.title or c.key for c in table.shown]
    assert titles == ["method", "protocol", "acc.", "vs SE, 95 %", "ECE", "head", "mid", "tail",
                      "ms"]  # fmt: skip
    assert [text for text, _, _ in table.cells()[0]][3:5] == ["-7.8…+3.8", "10.0"]
    several = terminal_table([{**row, "accuracy": a, "ci95": [a - 0.1, 0.6], "seeds": 3}
                              for a in (0.5, 0.58)], "few")  # fmt: skip
    assert [c.title for c in several.shown][2:4] == ["acc.", "±"]
    assert [row[3][0] for row in several.cells()] == ["10.0", "10.0"]  # by the end not cut off
    assert "±: 95 % over seeds" in several.caption


def test_suffix_decides_the_format(tmp_path):
    grid = rows_table(ROWS, "one")
    assert save_table(tmp_path / "t.csv", grid).read_bytes().decode() == grid.to_csv()
    assert save_table(tmp_path / "t.md", grid).read_text("utf-8") == grid.to_markdown()
    page = save_table(tmp_path / "t.html", grid).read_text("utf-8")
    assert page.startswith("<!doctype html>")
    assert grid.to_html() in page
    two = save_table(tmp_path / "t.tex", [grid, grid]).read_text("utf-8")
    assert two == f"{grid.to_latex()}\n{grid.to_latex()}"
    other = Grid([Column("method"), UP], [{"method": "z", "accuracy": 0.25}], "two")
    path = save_table(tmp_path / "two.csv", [grid, other])
    lines = list(csv.DictReader(io.StringIO(path.read_text("utf-8"))))
    assert [line["table"] for line in lines] == ["one", "one", "two"]
    assert (lines[2]["accuracy"], lines[2]["ece"]) == ("0.25", "")
    with pytest.raises(InputError, match=r"t\.xlsx.*\.csv, \.md, \.html or \.tex"):
        save_table(tmp_path / "t.xlsx", grid)
    assert not (tmp_path / "t.xlsx").exists()


def test_domains_or_methods_go_down_whichever_are_more():
    parts = {"clean": 0.5, "fog/3": 0.25}
    names = ("se", "stateless"), ("adte", "online"), ("adte", "two-pass")
    rows = [{"method": m, "protocol": p, "by_domain": parts} for m, p in names]
    wide = domains_table(rows, {"clean": 4, "fog/3": 8})
    assert [c.title or c.key for c in wide.shown] == [
        "method",
        "protocol",
        "clean (4)",
        "fog/3 (8)",
    ]
    assert [c[0] for c in wide.cells()[2]] == ["adte", "two-pass", "50.0", "25.0"]
    long = domains_table(rows[1:], {"clean": 4, "fog/3": 8})
    assert [c.title or c.key for c in long.shown] == ["domain", "images", "adte, online",
                                                      "adte, two-pass"]  # fmt: skip
    assert [c[0] for c in long.cells()[1]] == ["fog/3", "8", "25.0", "25.0"]
    assert domains_table(rows, {"clean": 4}) is None
    assert domains_table([{**r, "by_domain": None} for r in rows], {"a": 1, "b": 1}) is None


def test_names_are_no_markup_in_markdown():
    columns = (Column("name", "a*b"), Column("p", kind="p"))
    text = Grid(columns, [{"name": "<b>\n`c`\\|", "p": 0.0}], "one\n# two").to_markdown()
    assert text.splitlines() == [
        "### one # two", "", r"| a\*b | p |", "|:--|--:|", r"| \<b> \`c\`\\\| | < 0.001 |",
    ]  # fmt: skip


def test_names_are_no_commands_in_latex():
    columns = (Column("name", "100 %"), Column("gain", "a_b", "points"))
    rows = [{"name": "\\input{x}$^2$ ~#&", "gain": -0.021}, {"name": "se", "gain": 0.0}]
    lines = Grid(columns, rows, "one_two").to_latex().splitlines()
    assert r"100 \% & a\_b \\" in lines
    assert (
        r"\textbackslash{}input\{x\}\$\textasciicircum{}2\$ \textasciitilde{}\#\& & $-$2.1 \\"
        in lines
    )
    assert r"\caption{one\_two.}" in lines
