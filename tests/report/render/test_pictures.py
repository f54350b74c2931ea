"""The pictures say in words what they draw, and hold hostile numbers and names."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from ddpcheck.report.render import pictures

from .sample import HOSTILE

NAN, INF = float("nan"), float("inf")


def _texts(svg: str) -> list[str]:
    return [element.text or "" for element in ET.fromstring(svg).iter("text")]


def _bars(svg: str) -> list[float]:
    rects = ET.fromstring(svg).iter("rect")
    return [float(rect.get("width", "nan")) for rect in rects]


def test_before_after_bars_have_the_length_of_their_orders_of_magnitude() -> None:
    before, after = _bars(pictures.draw_before_after("k", 1e12, 1e-4))
    assert before == pytest.approx(3 * after, rel=0.01)


@pytest.mark.parametrize("value", [0.0, NAN, INF, 5e-324, 1.7e308])
def test_before_after_with_extreme_numbers_stays_inside(value: float) -> None:
    for rect in ET.fromstring(pictures.draw_before_after("k", value, value)).iter(
        "rect"
    ):
        x, width = float(rect.get("x", "nan")), float(rect.get("width", "nan"))
        assert 0 <= x <= x + width <= pictures.WIDTH


def test_modules_marks_the_first_that_diverges() -> None:
    found = [
        pictures.Module(name=f"layer.{i}", rel_diff=1e-16 * i, diverges=i in {3, 5})
        for i in range(7)
    ]
    svg = pictures.draw_modules("k", found)
    assert "Of 7 modules in call order, number 4, layer.3, is the first" in svg
    marks = [r for r in ET.fromstring(svg).iter("rect") if r.get("class") == "mark"]
    assert [mark.get("y") for mark in marks] == ["70"]


def test_modules_of_a_long_network_shows_the_first_that_diverges() -> None:
    found = [
        pictures.Module(name=f"m{i}", rel_diff=0.5, diverges=i == 150)
        for i in range(300)
    ]
    texts = _texts(pictures.draw_modules("k", found))
    assert "m150" in texts
    assert "relative difference, call order; 24 of 300 modules" in texts


def test_growth_gives_zero_a_tick_of_its_own() -> None:
    series = pictures.Series(label="buffers", style=1, values=(0.0, 0.0))
    assert "0" in _texts(pictures.draw_growth("k", [series]))
    series = pictures.Series(label="buffers", style=1, values=(1e-5, 1e-5))
    assert "0" not in _texts(pictures.draw_growth("k", [series]))


def test_ratios_draws_every_rank_and_the_expected_line() -> None:
    found = [("rank 0", 1.5), ("rank 1", 3.0), ("rank 2", NAN)]
    texts = _texts(pictures.draw_ratios("k", found, 2.0))
    assert texts == ["rank 0", "1.5", "rank 1", "3", "rank 2", "nan", "expected 2"]


def test_hostile_names_are_text() -> None:
    module = pictures.Module(name=HOSTILE, rel_diff=NAN, diverges=True)
    root = ET.fromstring(pictures.draw_modules("k", [module]))
    assert {element.tag for element in root.iter()} <= {
        "svg", "title", "desc", "rect", "line", "polygon", "circle", "text",
    }  # fmt: skip
