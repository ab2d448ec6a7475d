"""A report as tables: in the terminal, and as Markdown for a README."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from d3d_runtime.errors import UserError
from d3d_runtime.report.compare import BASELINE
from d3d_runtime.report.summary import Report, Row

if TYPE_CHECKING:
    from rich.console import Console

    from d3d_runtime.policy import Estimate

BEGIN, END = "<!-- d3d bench: begin -->", "<!-- d3d bench: end -->"
BUCKETS = ((0, 0), (1, 1), (2, 2), (3, 3), (4, 5), (6, 8), (9, 11), (12, 15), (16, 255))
MISSING = "-"

Column = tuple[str, Callable[[Row], str]]

SPEED: tuple[Column, ...] = (
    ("mode", lambda row: row.name),
    ("tok/s", lambda row: f"{row.tokens_per_second.median:.0f}"),
    ("min-max", lambda row: f"{row.tokens_per_second.low:.0f}-{row.tokens_per_second.high:.0f}"),
    ("speed-up", lambda row: f"{row.speedup.median:.2f}x"),
    ("predicted", lambda row: MISSING if row.predicted_speedup is None else f"{row.predicted_speedup:.2f}x"),
    ("tau", lambda row: f"{row.tau:.2f}"),
    ("identical", lambda row: f"{row.identical}/{row.outputs}"),
    ("solved", lambda row: f"{row.solved}/{row.outputs}"),
)

TIMES: tuple[Column, ...] = (
    ("ms a round", lambda row: row.name),
    ("T_d", lambda row: _ms(row.times.draft_ms if row.mode != BASELINE else None)),
    ("T_v", lambda row: _ms(row.times.verify_ms)),
    ("T_ov", lambda row: _ms(row.times.overlap_ms or None)),
    ("T_s", lambda row: _ms(row.times.tail_ms)),
    ("round", lambda row: _ms(row.round_ms)),
    ("predicted", lambda row: _ms(row.predicted_round_ms)),
    ("hits", lambda row: MISSING if row.hit_rate is None else f"{row.hit_rate:.0%}"),
)


EXPLANATION: tuple[tuple[str, Callable[[Estimate], str]], ...] = (
    ("auto", lambda row: f"{'> ' if row.chosen else '  '}{row.plan}"),
    ("batch", lambda row: str(row.batch_size)),
    ("context", lambda row: str(row.context)),
    ("rounds", lambda row: str(row.rounds)),
    ("round ms", lambda row: f"{row.round_ms:.2f}"),
    ("tau", lambda row: f"{row.tau:.2f}"),
    ("hits", lambda row: f"{row.hit_rate:.0%}" if row.plan.num_outcomes else MISSING),
    ("tok/s", lambda row: f"{row.tokens_per_second:.0f}"),
)


def _ms(value: float | None) -> str:
    return MISSING if value is None else f"{value:.2f}"


def histogram_columns(rows: list[Row]) -> tuple[Column, ...]:
    """Share of rounds by the number of accepted tokens."""
    most = max(max(row.acceptance_histogram) for row in rows)

    def share(low: int, high: int) -> Callable[[Row], str]:
        def cell(row: Row) -> str:
            inside = sum(
                count for accepted, count in row.acceptance_histogram.items() if low <= accepted <= high
            )
            return f"{inside / sum(row.acceptance_histogram.values()):.0%}"

        return cell

    def name(low: int, high: int) -> str:
        return f"{low}" if low == high else f"{low}+" if high == BUCKETS[-1][1] else f"{low}-{high}"

    buckets = [(low, high) for low, high in BUCKETS if low <= most]
    return (
        ("accepted", lambda row: row.name),
        *((name(low, high), share(low, high)) for low, high in buckets),
    )


def tables(report: Report) -> list[tuple[tuple, list]]:
    """Columns with their headers, and the rows that fill them."""
    drafting = [row for row in report.rows if row.mode != BASELINE]
    both = [(SPEED, report.rows), (TIMES, report.rows)]
    histogram = [(histogram_columns(drafting), drafting)] if drafting else []
    return both + histogram + ([(EXPLANATION, report.estimates)] if report.estimates else [])


def heading(report: Report) -> list[str]:
    """The machine, and what ran on it."""
    problems = f"{report.rows[0].outputs} held-out problems, run {report.repeats} times"
    settings = f"{report.dtype}, temperature {report.temperature:g}, batch {report.batch}"
    return [report.machine.line(), f"{settings}, {problems}"]


def remarks(report: Report) -> list[str]:
    """What the tables cannot say: where outputs differ, and what is fastest."""
    lines = []
    for row in report.rows:
        if row.first_difference is not None:
            request, token = row.first_difference
            count = row.outputs - row.identical
            lines.append(f"{row.name}: {count} outputs differ, the first at problem {request}, token {token}")
        if not row.repeatable:
            lines.append(f"{row.name}: its repeats did not say the same")
    fastest = max(report.rows, key=lambda row: row.tokens_per_second.median)
    lines.append(f"fastest here: {fastest.name}, {fastest.speedup.median:.2f}x {BASELINE}")
    return lines


def print_report(report: Report, console: Console) -> None:
    from rich import box
    from rich.table import Table

    for line in heading(report):
        console.print(line, style="dim")
    for columns, rows in tables(report):
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
        for index, (header, _) in enumerate(columns):
            table.add_column(header, justify="left" if index == 0 else "right", no_wrap=True)
        for row in rows:
            table.add_row(*(cell(row) for _, cell in columns))
        console.print(table)
    for line in remarks(report):
        console.print(line)


def markdown(report: Report) -> str:
    parts = ["  \n".join([*heading(report), f"{report.date}, `{report.command}`"])]
    for columns, rows in tables(report):
        headers = [header for header, _ in columns]
        rule = [":--", *["--:"] * (len(columns) - 1)]
        lines = [headers, rule, *([cell(row) for _, cell in columns] for row in rows)]
        parts.append("\n".join(f"| {' | '.join(line)} |" for line in lines))
    parts.append("\n".join(f"- {line}" for line in remarks(report)))
    return "\n\n".join(parts) + "\n"


def write_markdown(path: Path, text: str) -> None:
    """Writes between the marker lines of a file that has them; a new file is made with them.

    Raises UserError for a file without markers: it is somebody's text.
    """
    if not path.exists():
        path.write_text(f"{BEGIN}\n{text}{END}\n", encoding="utf-8")
        return
    before, after = split_at_markers(path)
    path.write_text(f"{before}{BEGIN}\n{text}{END}{after}", encoding="utf-8")


def split_at_markers(path: Path) -> tuple[str, str]:
    old = path.read_text(encoding="utf-8")
    if BEGIN not in old or END not in old:
        raise UserError(
            f"--markdown {str(path)!r}: it exists and has no lines {BEGIN!r} and {END!r} to write between"
        )
    return old[: old.index(BEGIN)], old[old.index(END) + len(END) :]
