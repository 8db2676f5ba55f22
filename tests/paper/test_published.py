"""The paper's numbers: the same as in its source, whole, and where they contradict themselves."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean

import pytest

from adte.core.errors import InputError
from adte.paper.published import Cell, Published, list_published, published

SOURCE = Path(__file__).resolve().parents[3] / "shared" / "paper" / "adte-paper.tex.txt"
TURNED = {"tail-classes", "bias-statistics"}  # rows and columns exchanged: one unit a column
ALIASES = {"wologitadjustmentla": "wola", "adte95%con.int": "adte95%interval"}

# ---------------------------------------------------------------- a reader of the LaTeX tables

MANY = r"\\(?:multirow\s*\{[^{}]*\}|rotatebox|textcolor)\s*\{[^{}]*\}\s*\{([^{}]*)\}"
SPAN = r"\\multicolumn\s*\{(\d+)\}\s*\{[^{}]*\}\s*\{([^{}]*)\}"
ONE = r"\\(?!multirow|rotatebox|textcolor|multicolumn)[A-Za-z]+\s*\{([^{}]*)\}"
COVERED = "\0"  # a cell that lies under the one to its left
NUMBER = r"-?\d+(?:\.\d+)?"

Printed = tuple[list[str], list[tuple[list[str], list[Cell]]]]  # column names; row names and cells


def plain(tex: str) -> str:
    """LaTeX → text: symbols, then commands from the inside out; a span leaves covered cells."""
    tex = tex.replace(r"\_", "_").replace(r"\%", "%").replace(r"\pm", "±").replace("~", " ")
    tex = re.sub(
        r"\{\}(?=_)|\\(?:rm|footnotesize|blacktriangle|vartriangle)\b(?!\s*\{)|\$", "", tex
    )
    while True:
        before = tex
        tex = re.sub(SPAN, lambda m: m[2] + f" & {COVERED}" * (int(m[1]) - 1), tex)
        tex = re.sub(ONE, r"\1", re.sub(MANY, r"\1", tex))
        if tex == before:
            tex = re.sub(r"(?<![}*\w])\{([^{}]*)\}", r"\1", tex)  # groups without a command
            tex = re.sub(r"_\{([^{}]*)\}", r"_\1", tex)
        if tex == before:
            assert not re.search(r"[\\{}]", tex), f"LaTeX left over in {tex!r}"
            return tex


def grid(tex: str) -> list[list[str]]:
    rules = r"\\(?:top|mid|bottom|cmid)rule\s*(?:\[[^\]]*\]|\([a-z]*\))?\s*(?:\{[\d-]*\})?"
    rows = re.sub(rules, "", tex).split(r"\\")
    return [[cell.strip() for cell in plain(row).split("&")] for row in rows if row.strip()]


def value(text: str) -> Cell:
    if text == "--":
        return None
    if re.fullmatch(NUMBER, text):
        return float(text)
    pair = re.fullmatch(rf"\(({NUMBER}), ({NUMBER})\)|({NUMBER})±({NUMBER})", text)
    assert pair, f"{text!r} is no cell"
    return tuple(float(x) for x in pair.groups() if x is not None)


def read_part(tex: str, names: int) -> Printed:
    """What stands between two outer rules; the first `names` cells of a row name it."""
    head, _, body = tex.partition(r"\midrule")
    heads: list[list[str]] = []
    for row in grid(head):
        heads.append([])
        for cell in row:
            heads[-1].append(heads[-1][-1] if cell == COVERED else cell)
    columns = [" ".join(filter(None, column)) for column in zip(*heads, strict=True)]
    rows = []
    for row in grid(body.removeprefix("[0.7pt]")):
        assert len(row) == len(columns), row
        rows.append((row[:names], [value(c) for c in row[names:] if c != COVERED]))
    return list(dict.fromkeys(columns[names:])), rows


@pytest.fixture(scope="module")
def tabulars() -> dict[str, list[tuple[str, str]]]:
    """(column specification, body) of every tabular of the paper, by the label of its table."""
    if not SOURCE.is_file():
        pytest.skip("needs the paper's source in ../shared/paper, which is not here")
    tex = re.sub(r"(?<!\\)%.*", "", SOURCE.read_text(encoding="utf-8"))
    found: dict[str, list[tuple[str, str]]] = {}
    for _, inside in re.findall(r"(?s)\\begin\{(table|wraptable|minipage)\}(.*?)\\end\{\1\}", tex):
        bodies = re.findall(r"(?s)\\begin\{tabular\}\{(.*?)\}\n(.*?)\\end\{tabular\}", inside)
        if bodies:
            (label,) = re.findall(r"\\label\{(tab:[^}]*)\}", inside)
            assert label not in found
            found[label] = bodies
    assert sum(map(len, found.values())) == tex.count(r"\begin{tabular}") > 20
    return found


def parts(tabulars: dict[str, list[tuple[str, str]]], label: str) -> list[Printed]:
    """The tables under a label, as printed; one tabular may hold two, each in its own rules."""
    read = []
    for _, body in tabulars[label]:
        names = 2 if label in ("tab:imagenet_shift", "tab:cross_data", "tab:ablation study") else 1
        whole = re.sub(r"\\midrule\[0.7pt\]\s*\\toprule\[0.7pt\]", "", body)
        if label == "tab:uni_modal":  # two tables side by side
            whole = re.sub(r"\\midrule(?=\s*\$\+\$)", "", whole)
            head, *rows = grid(whole)
            assert head == ["Method", "Error(%)"] * 2
            assert [r[0] for r in rows[1:]] == [r[2] for r in rows[1:]]
            columns = [rows[0][0].removesuffix(" (baseline)"), rows[0][2]]
            cells = [[value(r[1]), value(r[3])] for r in rows]
            names_of = [["baseline"], *([r[0]] for r in rows[1:])]
            read.append((columns, list(zip(names_of, cells, strict=True))))
            continue
        read += [read_part(p, names) for p in whole.split(r"\bottomrule") if p.strip()]
    return read


def as_printed(tabulars: dict[str, list[tuple[str, str]]], table: Published) -> Printed:
    """The table as our file has it: joined, one half of two, or turned."""
    found = [p for label in table.label for p in parts(tabulars, label)]
    if table.label == ("tab:interval",):
        found = [found[["intervals", "cost"].index(table.name)]]
    columns, rows = found[0]
    for more, more_rows in found[1:]:
        assert [n for n, _ in more_rows] == [n for n, _ in rows]
        columns = columns + more
        rows = [(n, a + b) for (n, a), (_, b) in zip(rows, more_rows, strict=True)]
    if table.name in TURNED:
        turned = [list(c) for c in zip(*(cells for _, cells in rows), strict=True)]
        columns, rows = (
            [n[-1] for n, _ in rows],
            [([c], t) for c, t in zip(columns, turned, strict=True)],
        )
    return columns, rows


def normal(name: str) -> str:
    """A name without years, class counts, units, prompts and punctuation."""
    name = re.sub(r"_?\s*\[\w+ \d{4}\]|\(\d+\)|\(%\)|_(Templates|CuPL)$", "", name)
    name = re.sub(r"CLIP-ViT[/-]B[/-]16", "CLIP", name)
    name = re.sub(r"[^a-z0-9.%,]", "", name.lower()).rstrip(".")
    return ALIASES.get(name, name)


# ---------------------------------------------------------------- against the paper's source


def test_no_table_is_left_out(tabulars: dict[str, list[tuple[str, str]]]) -> None:
    ours = [label for name in list_published() for label in published(name).label]
    assert set(ours) == set(tabulars)
    found = sum(len(parts(tabulars, label)) for label in tabulars)
    assert len(ours) == found  # tab:interval holds two tables


@pytest.mark.parametrize("name", list_published())
def test_every_cell_is_the_paper_s(name: str, tabulars: dict[str, list[tuple[str, str]]]) -> None:
    table = published(name)
    columns, rows = as_printed(tabulars, table)
    assert [normal(c) for c in table.columns] == [normal(c) for c in columns]
    assert [normal(r.name) for r in table.rows] == [normal(n[-1]) for n, _ in rows]
    for ours, (_, theirs) in zip(table.rows, rows, strict=True):
        assert list(ours.cells) == theirs, ours.name


@pytest.mark.parametrize("name", ["ood", "cross-domain"])
def test_blocks_are_the_paper_s(name: str, tabulars: dict[str, list[tuple[str, str]]]) -> None:
    """A network's rows begin at CLIP, with its name beside one of them; ADTE ends a prompt kind."""
    _, rows = as_printed(tabulars, published(name))
    blocks: list[str] = []
    starts = [i for i, (n, _) in enumerate(rows) if normal(n[1]) == "clip"]
    for start, end in zip(starts, [*starts[1:], len(rows)], strict=True):
        (network,) = {n[0] for n, _ in rows[start:end]} - {""}
        waiting = 0
        for names, _ in rows[start:end]:
            waiting += 1
            if kind := re.fullmatch(r"ADTE_(\w+)", names[1]):
                blocks += [f"{network} {kind[1].replace('Templates', 'templates')}"] * waiting
                waiting = 0
    assert [r.block for r in published(name).rows] == blocks


# ---------------------------------------------------------------- against itself

Claim = tuple[str, float, float, float]  # where, printed, implied by other numbers, tolerance
DIGIT = 0.05 + 1e-9  # half of the last digit of an accuracy
SAME = 1e-9
BASE = "ViT-B/16 templates"


def number(table: str, row: str, column: str, block: str | None = None) -> float:
    cell = published(table).cell(row, column, block)
    assert isinstance(cell, float)
    return cell


def mean_of(table: str, row: str, columns: tuple[str, ...], block: str | None = None) -> float:
    return fmean(number(table, row, c, block) for c in columns)


def first(method: str, data: str) -> float:
    """The accuracy in the main table, of ViT-B/16 with templates, by any name of a data set."""
    short = data.removeprefix("ImageNet-").removeprefix("IN-")
    column = {"1k": "IN", "I": "IN", "IN": "IN", "V": "IN-V2"}.get(short, f"IN-{short}")
    return number("ood", method, column, BASE)


def averages() -> Iterator[Claim]:
    for name, column, part in (
        ("ood", "Average", slice(0, 5)),
        ("ood", "OOD Avg", slice(1, 5)),
        ("cross-domain", "Avg", slice(0, 10)),
        ("intervals", "Avg", slice(0, 5)),
    ):
        table = published(name)
        for r in table.rows:
            mean = mean_of(name, r.name, table.columns[part], r.block)
            where = " | ".join(filter(None, (name, r.block, r.name, column)))
            yield where, number(name, r.name, column, r.block), mean, DIGIT
    # five groups of 200 classes, 50 images each, are the whole of ImageNet
    for row, method in (("CLIP", "CLIP"), ("SE", "Zero"), ("ADTE", "ADTE")):
        mean = mean_of("low-bias", row, published("low-bias").columns)
        yield f"low-bias | {row} | mean", mean, first(method, "IN"), 2 * DIGIT


def differences() -> Iterator[Claim]:
    table = "bias-statistics"
    for row in (r.name for r in published(table).rows):
        clip, adte = number(table, row, "Acc (CLIP)"), number(table, row, "Acc (ADTE)")
        yield f"{table} | {row} | Gain", number(table, row, "Gain"), adte - clip, SAME
        root = number(table, row, "Variance") ** 0.5
        yield f"{table} | {row} | Std_Dev", number(table, row, "Std_Dev"), root, 1e-4


def repeats() -> Iterator[Claim]:
    """Numbers that are printed in two tables."""
    for network in ("ViT-B/16", "ViT-L/14"):
        for row, method in (("ADTE", "ADTE"), ("w/o ADTE and LA", "Zero")):
            for column, table, theirs in (
                ("IN-Variants", "ood", "OOD Avg"),
                ("IN", "ood", "IN"),
                ("10-datasets", "cross-domain", "Avg"),
            ):
                printed = number("ablation", row, f"{network} {column}")
                source = number(table, method, theirs, f"{network} templates")
                yield f"ablation | {row} | {network} {column}", printed, source, SAME
    for table, row, method in (
        ("entropies", "ADTE", "ADTE"),
        ("intervals", "[0.01, 0.9]", "ADTE"),
        ("normalisations", "Min-Max", "ADTE"),
        ("mixed-stream", "ADTE", "ADTE"),
        ("confidence-intervals", "ADTE", "ADTE"),
        ("confidence-intervals", "CLIP", "CLIP"),
        ("confidence-intervals", "SE", "Zero"),
    ):
        for column in published(table).columns[:5]:
            where = f"{table} | {row} | {column}"
            yield where, number(table, row, column), first(method, column), SAME
    for table, row, column, method, data, tolerance in (
        ("label-noise", "CLIP", "Zero-shot", "CLIP", "IN-A", SAME),
        ("label-noise", "SE", "Zero-shot", "Zero", "IN-A", SAME),
        ("label-noise", "ADTE", "Pseudo Label", "ADTE", "IN-A", SAME),
        ("successors", "CLIP", "ImageNet-1k Acc", "CLIP", "IN", SAME),
        ("successors", "CLIP", "+ADTE", "ADTE", "IN", SAME),
        ("bank-size", "ADTE", "10", "ADTE", "IN", DIGIT),
    ):
        where = f"{table} | {row} | {column}"
        yield where, number(table, row, column), first(method, data), tolerance
    for row in (r.name for r in published("bias-statistics").rows):
        for method in ("CLIP", "ADTE"):
            printed = number("bias-statistics", row, f"Acc ({method})")
            yield f"bias-statistics | {row} | {method}", printed, first(method, row), SAME
    # Shannon entropy with logit adjustment is both "SE-LA" and "w/o ADTE"
    for column, theirs in (("IN", ("IN",)), ("IN-Variants", ("IN-V2", "IN-K", "IN-A", "IN-R"))):
        printed = number("ablation", "w/o ADTE", f"ViT-B/16 {column}")
        source = mean_of("entropies", "SE-LA", theirs)
        yield f"ablation | w/o ADTE | {column}", printed, source, DIGIT
    # the bias on ImageNet with the default bank of 10
    printed = number("bias-stability", "Variance", "10")
    source = number("bias-statistics", "IN-I", "Variance")
    yield "bias-stability | Variance | 10", printed, source, SAME


# The paper's slips: (printed, implied by its other numbers).
SLIPS = {
    # averages that are not the rounded mean of the printed cells; all within 0.1, so the cells'
    # own rounding may hide in them
    "ood | ViT-B/16 templates | ADTE | Average": (67.5, 67.56),
    "ood | ViT-L/14 templates | Zero | OOD Avg": (75.9, 75.975),
    "cross-domain | ViT-L/14 templates | TPT | Avg": (71.5, 71.59),
    "cross-domain | ViT-L/14 templates | TDA | Avg": (74.2, 74.27),
    "cross-domain | ViT-L/14 CuPL | CuPL | Avg": (74.7, 74.78),
    "cross-domain | ViT-L/14 CuPL | Frolic | Avg": (77.1, 77.19),
    "intervals | [0.01, 0.9] | Avg": (67.5, 67.56),
    "intervals | [0.001, 0.9] | Avg": (67.5, 67.56),
    "ablation | w/o ADTE | IN-Variants": (65.4, 65.3),
    # beyond any rounding
    "ablation | w/o ADTE | IN": (71.1, 71.0),
    "bias-statistics | IN-R | Gain": (4.7, 3.7),
    "bias-statistics | IN-A | Std_Dev": (0.9621, 0.9761),
    "bias-statistics | IN-K | Std_Dev": (1.2953, 1.2593),
    "bias-stability | Variance | 10": (1.5247, 1.0833),
    "low-bias | CLIP | mean": (66.22, 68.7),
    "low-bias | SE | mean": (67.5, 70.9),
    "low-bias | ADTE | mean": (69.38, 71.8),
}


def test_the_numbers_agree_but_for_the_known_slips() -> None:
    checked = [*averages(), *differences(), *repeats()]
    assert len(checked) == len({where for where, *_ in checked}) > 100
    wrong = {w: (round(p, 4), round(i, 4)) for w, p, i, far in checked if abs(p - i) > far}
    assert wrong == SLIPS


def test_the_claimed_intervals_hold_the_claimed_accuracies() -> None:
    table = published("confidence-intervals")
    for column in table.columns:
        interval = table.cell("ADTE 95% interval", column)
        assert isinstance(interval, tuple)
        middle, half = interval
        assert abs(number(table.name, "ADTE", column) - middle) <= half


# ---------------------------------------------------------------- the module


@pytest.mark.parametrize("name", list_published())
def test_tables_are_whole(name: str) -> None:
    table = published(name)
    assert table.name == name
    assert table.title
    assert table.model
    assert table.data
    assert len(set(table.columns)) == len(table.columns) == len(table.units)
    assert set(table.units) <= {"percent", "plain"}
    assert len({(r.name, r.block) for r in table.rows}) == len(table.rows) > 0
    for r in table.rows:
        assert (r.block is None) == (table.rows[0].block is None)
        for column, cell in zip(table.columns, r.cells, strict=True):
            assert table.cell(r.name, column, r.block) == cell
            values = cell if isinstance(cell, tuple) else () if cell is None else (cell,)
            assert all(isinstance(x, float) for x in values)
            if table.percent(column):
                assert all(0 <= x <= 100 for x in values)


def test_blocks_tell_rows_of_one_name_apart() -> None:
    ood = published("ood")
    assert len({r.block for r in ood.rows}) == 4
    assert ood.cell("Dyna", "IN") == 69.6  # one row only: no block needed
    assert ood.cell("ADTE", "IN", BASE) != ood.cell("ADTE", "IN", "ViT-L/14 CuPL")
    for nowhere in (("Zero", "IN-B"), ("Frolic", "IN", BASE), ("Zero", "IN", "ViT-H")):
        assert ood.cell(*nowhere) is None


def test_unknown_tables_list_what_exists() -> None:
    with pytest.raises(InputError, match=r"unknown published table 'odd' .*'ood'.*cross-domain"):
        published("odd")
