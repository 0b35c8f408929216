"""Throughput and latency over concurrency, arms with bands, the crossover marked: a PNG and a self-contained page."""

from __future__ import annotations

import html
import io
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from abi_checks.errors import SourceError, UsageError
from stack.bench.crossover import Crossover, render
from stack.bench.schema import BenchResult, Run
from stack.bench.stats import bootstrap_median

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito's colours, told apart by readers with any colour vision; markers differ as well.
_STYLES = (("#0072B2", "o"), ("#D55E00", "s"), ("#009E73", "^"), ("#CC79A7", "D"), ("#E69F00", "v"))
_PANELS = (
    ("throughput", "all requests together (tokens/s)", lambda run: run.loaded_throughput),
    ("per request", "one request (tokens/s)", lambda run: run.request_rate),
    ("latency", "median request (s)", lambda run: run.latency.p50 / 1000 if run.latency else None),
    ("time to first token", "median (ms)", lambda run: run.ttft.p50 if run.ttft else None),
)


def draw(results: Sequence[BenchResult], answer: Crossover | None, title: str) -> Any:
    """A matplotlib figure of all arms. Raises :class:`UsageError` without matplotlib."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UsageError("plots need matplotlib: install cu130-stack[plot]") from error
    if len(results) > len(_STYLES):
        raise UsageError(f"at most {len(_STYLES)} arms fit into one picture, not {len(results)}")
    figure = Figure(figsize=(12, 8.4), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, (name, unit, value) in zip(figure.subplots(2, 2).flat, _PANELS, strict=True):
        for result, style in zip(results, _STYLES, strict=False):
            _arm(axes, result, style, value)
        _dress(axes, name, unit, results)
        if answer:
            _mark(axes, answer, label=name == "throughput")
    figure.axes[0].legend(loc="best", fontsize=9)
    figure.suptitle(title, fontsize=12)
    return figure


def write(results: Sequence[BenchResult], answer: Crossover | None, title: str, target: Path) -> tuple[Path, Path]:
    """Write TARGET.png and TARGET.html; returns both paths."""
    figure = draw(results, answer, title)
    image, page = (target.with_name(f"{target.name}.{ending}") for ending in ("png", "html"))
    drawing = io.StringIO()
    figure.savefig(drawing, format="svg", metadata={"Date": None})
    svg = drawing.getvalue()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(image, dpi=110)
        page.write_text(_page(results, answer, title, svg[svg.index("<svg") :]), encoding="utf-8")
    except OSError as error:
        raise SourceError(f"{target}: cannot write the plot: {error.strerror}") from error
    return image, page


def _arm(axes: Axes, result: BenchResult, style: tuple[str, str], value: Any) -> None:
    levels = sorted({run.concurrency for run in result.runs})
    points = [(level, _values(result.usable(level), value)) for level in levels]
    points = [(level, values) for level, values in points if values]
    if not points:
        return
    colour, marker = style
    xs = [level for level, _ in points]
    label = result.arm + (" (from the record)" if result.origin == "record" else "")
    axes.plot(xs, [median(values) for _, values in points], color=colour, marker=marker, label=label, linewidth=1.8)
    bands = [(level, bootstrap_median(values)) for level, values in points]
    known = [(level, band) for level, band in bands if band]
    if known:
        lows, highs = [band[0] for _, band in known], [band[1] for _, band in known]
        axes.fill_between([level for level, _ in known], lows, highs, color=colour, alpha=0.2, linewidth=0)


def _values(runs: Sequence[Run], value: Any) -> list[float]:
    return [number for number in map(value, runs) if number]


def _dress(axes: Axes, name: str, unit: str, results: Sequence[BenchResult]) -> None:
    levels = sorted({run.concurrency for result in results for run in result.runs})
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks(levels, [str(level) for level in levels])
    axes.minorticks_off()
    low, high = axes.get_ylim()
    # A log axis labels whole powers only, and most of these plots span one or two.
    for digits in ((1, 2, 5), (1, 1.5, 2, 3, 5, 7), (1, 1.2, 1.4, 1.6, 1.8, 2, 2.5, 3, 3.5, 4, 5, 6, 7, 8, 9)):
        steps = [digit * 10.0**power for power in range(-6, 8) for digit in digits]
        steps = [step for step in steps if low <= step <= high]
        if len(steps) >= 4:
            break
    axes.set_yticks(steps, [f"{step:,.10g}" for step in steps])
    axes.set_xlabel("concurrent requests")
    axes.set_ylabel(unit)
    axes.set_title(name, fontsize=11, loc="left")
    axes.grid(True, alpha=0.3)


def _mark(axes: Axes, answer: Crossover, label: bool) -> None:
    if answer.won is not None and answer.lost is not None and answer.estimate is not None:
        text = f"crossover: C = {answer.estimate:.0f}, between {answer.won} and {answer.lost}"
        axes.axvspan(answer.won, answer.lost, color="#888888", alpha=0.15, linewidth=0)
        axes.axvline(answer.estimate, color="#444444", linestyle="--", linewidth=1.2, label=text if label else None)


def _page(results: Sequence[BenchResult], answer: Crossover | None, title: str, svg: str) -> str:
    rows = []
    for result in results:
        for level in sorted({run.concurrency for run in result.runs}):
            runs = result.usable(level)
            cells = [result.arm, str(level), f"{len(runs)} of {sum(r.concurrency == level for r in result.runs)}"]
            for _, _, value in _PANELS:
                values = _values(runs, value)
                cells.append(f"{median(values):,.2f}" if values else "")
            lengths = [run.acceptance.length for run in runs if run.acceptance]
            cells.append(f"{median(lengths):.2f}" if lengths else "")
            notes = sorted(
                {note for run in result.runs if run.concurrency == level for note in run.notes + run.rejected}
            )
            rows.append("".join(f"<td>{html.escape(cell)}</td>" for cell in [*cells, "; ".join(notes)]))
    heads = ["arm", "C", "runs used", *(f"{name}, {unit}" for name, unit, _ in _PANELS), "accept length", "remarks"]
    head = "".join(f"<th>{html.escape(cell)}</th>" for cell in heads)
    said = f"<pre>{html.escape(render(answer))}</pre>" if answer else ""
    name = html.escape(title)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{name}</title><style>'
        "body{font:15px/1.5 system-ui,sans-serif;margin:2em auto;max-width:75em;padding:0 1em}"
        "svg{max-width:100%;height:auto}"
        "table{border-collapse:collapse;font-size:13px}td,th{border:1px solid #ccc;padding:.2em .6em;text-align:right}"
        "td:first-child,td:last-child{text-align:left}pre{background:#f5f5f5;padding:1em;overflow:auto}"
        f"</style></head><body><h1>{name}</h1>{svg}{said}<table><tr>{head}</tr>"
        + "".join(f"<tr>{row}</tr>" for row in rows)
        + "</table><p>Medians of the runs used; bands are 95 % bootstrap intervals of the median.</p></body></html>\n"
    )
