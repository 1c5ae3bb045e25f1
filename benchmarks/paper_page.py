"""Write docs/results/paper/index.md and its figures again from the records beside them.

python benchmarks/paper_page.py

The records are those that `gdws reproduce` wrote into rows/ of its folder. notes.toml may have a sentence for the name of a
row.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from gdws.reproduce.pages import write_pages
from gdws.reproduce.paper import chosen_tables

FOLDER = Path(__file__).parents[1] / "docs" / "results" / "paper"


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    write_pages(FOLDER, FOLDER / "rows", chosen_tables(["all", "leaderboard"]))
    (FOLDER / "index.html").unlink()  # the site is of Markdown


if __name__ == "__main__":
    main()
