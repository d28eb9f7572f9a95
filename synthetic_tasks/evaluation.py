"""The result of an evaluation: one record per scored answer, tables with clustered intervals, files.

Intervals count clusters, not answers (synthetic_tasks.intervals): the answers of one row share its shots, and the
rows of the same number of partner tasks share their facts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from synthetic_tasks.baselines import FORMER, average
from synthetic_tasks.csv_text import write_csv
from synthetic_tasks.intervals import share_interval

if TYPE_CHECKING:
    import pandas as pd

# The groupings of a table; "all" is one line.
GROUPINGS = ("all", "task", "pattern", "transformation", "family", "domain", "surface", "shots", "source")


@dataclass(frozen=True)
class Evaluation:
    """Scores of a model on rows.

    records: one dict per scored answer: row (its place), shots (K), task, pattern, transformation, family, domain,
        surface, cluster, source, answer, correct, accepted, restricted, logprob (summed over the answer, natural
        logarithm), tokens (of the answer), greedy (the most probable token at each of its places, decoded)
    baseline: task -> name -> expected accuracy of a baseline (synthetic_tasks.baselines) on the same rows
    bootstrap, seed: of no effect: intervals are computed, where version 0.1 drew them
    """

    model: str
    records: list[dict[str, Any]]
    baseline: Mapping[str, Mapping[str, float]]
    bootstrap: int = 1000
    seed: int = 0

    @property
    def accuracy(self) -> float:
        """The share of answers whose every token is the most probable one."""
        return sum(record["correct"] for record in self.records) / len(self.records)

    @property
    def perplexity(self) -> float:
        """exp of the mean negative log-probability of the answers' tokens."""
        return float(self.table("all")["perplexity"].iloc[0])

    def to_dataframe(self) -> pd.DataFrame:
        """One line per scored answer."""
        import pandas as pd

        return pd.DataFrame(self.records)

    def table(self, by: str = "all") -> pd.DataFrame:
        """One line per group: answers, accuracy with its 95 % interval, other accuracies, perplexity.

        by: one of GROUPINGS. The columns `low` and `high` belong to `accuracy`.
        """
        import numpy as np
        import pandas as pd

        if by not in GROUPINGS:
            raise ValueError(f"there is no table by {by!r}; choose from {', '.join(GROUPINGS)}")
        frame = self.to_dataframe().assign(all="all")
        lines = []
        for group, part in frame.groupby(by, sort=by in ("shots", "source")):
            low, high = self.interval(part)
            lines.append(
                {
                    by: group,
                    "answers": len(part),
                    "accuracy": part["correct"].mean(),
                    "low": low,
                    "high": high,
                    "accepted": part["accepted"].mean(),
                    "restricted": part["restricted"].mean(),
                    "logprob": part["logprob"].mean(skipna=False),
                    "perplexity": float(np.exp(-part["logprob"].sum(skipna=False) / part["tokens"].sum())),
                }
            )
        return pd.DataFrame(lines)

    def interval(self, part: pd.DataFrame) -> tuple[float, float]:
        """A 95 % interval of the accuracy of some records, by their clusters; NaN with fewer than two of them."""
        clusters = part.groupby("cluster")["correct"].agg(["sum", "count"]).to_numpy(dtype=float)
        low, high = share_interval(clusters[:, 0], clusters[:, 1])
        return float(low), float(high)

    def compare(self, by: str = "pattern") -> pd.DataFrame:
        """`table(by)` with the baselines of the same rows beside it (`by` a property of tasks, or "all")."""
        if by in ("shots", "source"):
            raise ValueError(f"baselines are per task, so a table by {by!r} has none; choose another grouping")
        table = self.table(by)
        frame = self.to_dataframe().assign(all="all")
        counts = {group: tasks.value_counts() for group, tasks in frame.groupby(by, sort=False)["task"]}
        levels = [average(self.baseline, counts[group].index, counts[group]) for group in table[by]]
        for name in dict.fromkeys(name for level in levels for name in level):
            table[name] = [level.get(name, float("nan")) for level in levels]
        return table

    def summary(self) -> dict[str, Any]:
        """Everything but the records, ready for JSON."""
        tables = {by: json.loads(self.table(by).to_json(orient="records")) for by in GROUPINGS}
        return {
            "model": self.model,
            "answers": len(self.records),
            "bootstrap": self.bootstrap,
            "seed": self.seed,
            "tables": tables,
            "baselines": {task: dict(named) for task, named in self.baseline.items()},
        }

    def save(self, folder: str | Path) -> list[Path]:
        """Write answers.csv, summary.json and, if pandas has an engine for it, answers.parquet; return the paths."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        frame = self.to_dataframe()
        written = [folder / "answers.csv", folder / "summary.json"]
        write_csv(frame, written[0])
        written[1].write_text(json.dumps(self.summary(), indent=1) + "\n", encoding="utf-8")
        try:
            frame.to_parquet(folder / "answers.parquet", index=False)
        except ImportError:
            return written
        return [*written, folder / "answers.parquet"]

    @classmethod
    def load(cls, folder: str | Path) -> Evaluation:
        """Read what `save` wrote."""
        import pandas as pd

        folder = Path(folder)
        if not (folder / "summary.json").exists():
            raise ValueError(f"{folder} does not hold a finished evaluation (summary.json is missing)")
        summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
        text = {"answer": str, "greedy": str}  # "2014" is a word here
        given = {"dtype": text, "keep_default_na": False, "na_values": {"logprob": [""]}}
        records = pd.read_csv(folder / "answers.csv", **given).to_dict("records")
        levels = {
            task: {FORMER.get(name, name): level for name, level in named.items()}
            for task, named in summary["baselines"].items()
        }
        return cls(summary["model"], records, levels, summary["bootstrap"], summary["seed"])


def render(table: pd.DataFrame, decimals: int = 1) -> str:
    """A table as Markdown: shares in percent, counts whole, perplexity and log-probability with two decimals."""
    plain = {"answers": "{:.0f}", "perplexity": "{:.2f}", "logprob": "{:.2f}"}

    def cell(column: str, value: Any) -> str:
        if isinstance(value, str):
            return value
        if column in plain:
            return plain[column].format(value)
        if isinstance(value, float):
            return "-" if value != value else f"{100 * value:.{decimals}f}"
        return str(value)

    lines: Sequence[Sequence[str]] = [
        list(table.columns),
        ["---"] * len(table.columns),
        *([cell(c, v) for c, v in zip(table.columns, row, strict=True)] for row in table.itertuples(index=False)),
    ]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
