"""Draws how long declarations take from submission to payment, by quarter: the query of docs/SPARK.md.

    python docs/examples/travel_expenses.py /data/travel payment-times.svg

The SVG is written by hand, so only Spark is needed.
"""

import sys
from html import escape
from pathlib import Path

from pyspark_eventstore.spark_session import start_session

PAGE = Path(__file__).parents[1] / "SPARK.md"
TITLE = "Days from submission to payment, median, by quarter of submission"
WIDTH, HEIGHT, MARGIN = 720, 320, 48
BAR, INK, PALE = "#3b6ea5", "#333", "#ddd"


def query() -> str:
    """Returns the SQL statement below its title on the page."""
    text = PAGE.read_text(encoding="utf-8").split("*How long from submission to payment:*")[1]
    return text.split("```sql\n")[1].split("```")[0]


def chart(title: str, rows: list[tuple[str, int, float]]) -> str:
    """Returns an SVG bar chart: one bar for each (quarter, count, days), its name below, its value above."""
    top = max(days for _, _, days in rows)
    step = (WIDTH - 2 * MARGIN) / len(rows)
    floor, room = HEIGHT - MARGIN - 14, HEIGHT - 2 * MARGIN - 40
    parts = [text(WIDTH / 2, 26, title, size=15)]
    for day in range(0, int(top) + 1, 2):
        y = floor - room * day / top
        parts.append(f'<line x1="{MARGIN}" x2="{WIDTH - MARGIN}" y1="{y:.1f}" y2="{y:.1f}" stroke="{PALE}"/>')
        parts.append(text(MARGIN - 14, y + 4, str(day)))
    for place, (quarter, count, days) in enumerate(rows):
        x, height = MARGIN + place * step, room * days / top
        bar = f'x="{x + step * 0.15:.1f}" y="{floor - height:.1f}" width="{step * 0.7:.1f}" height="{height:.1f}"'
        parts.append(f'<rect {bar} fill="{BAR}"/>')
        middle = x + step / 2
        parts.append(text(middle, floor - height - 6, f"{days:.1f}"))
        parts.append(text(middle, floor + 18, quarter))
        parts.append(text(middle, floor + 34, f"{count:,} paid", size=10))
    box = f'viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}"'
    white = f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>'
    font = 'font-family="Helvetica, Arial, sans-serif" text-anchor="middle"'
    return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" {box} {font}>', white, *parts, "</svg>", ""])


def text(x: float, y: float, what: str, size: int = 12) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{INK}">{escape(what)}</text>'


def main(data: str, out: str) -> None:
    spark = start_session("travel expenses", "local[*]")
    try:
        spark.read.format("eventstore").load(data).createOrReplaceTempView("events")
        rows = [(row.quarter, row.declarations, float(row.days)) for row in spark.sql(query()).collect()]
    finally:
        spark.stop()
    Path(out).write_text(chart(TITLE, rows), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
