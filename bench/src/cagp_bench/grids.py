"""A table of text in every format: for terminals, Markdown, LaTeX and CSV."""

import csv
import io
from pathlib import Path
from typing import NamedTuple

from cagp.files import write_atomically
from cagp.text_tables import table_of_text

LATEX = {"&": r"\&", "%": r"\%", "#": r"\#", "_": r"\_", "±": r"$\pm$", "–": "--", "²": "$^2$", "é": r"\'e"}


class Grid(NamedTuple):
    """Columns by their names, all of the same length; the first ``num_keys`` name the rows."""

    columns: dict[str, list[str]]
    num_keys: int = 1

    def rows(self) -> list[tuple[str, ...]]:
        """The cells row by row."""
        return list(zip(*self.columns.values(), strict=True))

    def text(self, width: int) -> str:
        """Lines of at most ``width`` characters."""
        return table_of_text(self.columns, width, self.num_keys)

    def markdown(self) -> str:
        """A table with pipes."""
        lines = [list(self.columns), ["---"] * len(self.columns), *map(list, self.rows())]
        return "\n".join("| " + " | ".join(cell.replace("|", r"\|") for cell in line) + " |" for line in lines)

    def latex(self) -> str:
        """A tabular for the package booktabs."""
        left = "l" * self.num_keys + "r" * (len(self.columns) - self.num_keys)
        head, *body = [" & ".join(map(_escaped, line)) + r" \\" for line in (list(self.columns), *self.rows())]
        return "\n".join(
            [rf"\begin{{tabular}}{{{left}}}", r"\toprule", head, r"\midrule", *body, r"\bottomrule", r"\end{tabular}"]
        )

    def csv(self) -> str:
        """Comma-separated values."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(self.columns)
        writer.writerows(self.rows())
        return out.getvalue()

    def write(self, stem: Path, width: int = 160) -> list[Path]:
        """Write STEM.txt, .md, .tex and .csv; return the paths."""
        contents = {".txt": self.text(width), ".md": self.markdown(), ".tex": self.latex(), ".csv": self.csv()}
        paths = []
        for ending, content in contents.items():
            path = stem.with_name(stem.name + ending)
            write_atomically(path, (content.rstrip("\n") + "\n").encode())
            paths.append(path)
        return paths


def _escaped(text: str) -> str:
    return "".join(LATEX.get(letter, letter) for letter in text)
