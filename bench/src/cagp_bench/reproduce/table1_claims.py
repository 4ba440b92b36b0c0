"""The paper's claims about its Table 1, judged by the records of ``cagp reproduce table1``."""

from collections.abc import Iterator
from statistics import fmean, stdev

from cagp.quantities import seconds_of
from cagp_bench.reproduce.comparisons import (
    LINES,
    OPT,
    OURS,
    Curve,
    Scores,
    coverage_chance,
    covers_better,
    learns_less_noise,
    matches_or_beats,
    paper_nll,
    ramps_up,
)
from cagp_bench.reproduce.experiment import Claim, Outcome, Record, on_tables
from cagp_bench.suite_tables import choose

SOURCE = "table1"
"""What the names of files of its records begin with."""

FLOOR = 1e-4
"""Claims are judged at GPyTorch's noise floor, which the paper seems to have used."""

_LINES = {**LINES, OURS: ("CaGP-Opt, our blocks and start",), "CaGP-Local": ("CaGP-Local",)}


def table1_scores(records: list[Record], name: str) -> Scores:
    """A score of each method on each table, with the optimiser and the rate that validation rows choose."""
    found: Scores = {}
    for table, method, runs in _chosen(records):
        values = [run[name] for run in runs]
        found.setdefault(table, {})[method] = fmean(values), stdev(values) if len(values) > 1 else 0.0
    return found


def table1_curves(records: list[Record]) -> dict[str, dict[str, Curve]]:
    """Test NLL against seconds of training, of the first seed, with the same choices."""
    found: dict[str, dict[str, Curve]] = {}
    for table, method, runs in _chosen(records):
        points = [(p["seconds"], p["test_nll"]) for p in runs[0].get("trajectory") or [] if p["test_nll"] is not None]
        if points:
            found.setdefault(table, {})[method] = points
    return found


def _chosen(records: list[Record]) -> Iterator[tuple[str, str, list[Record]]]:
    """Table, method, and its runs with the optimiser and the settings that validation rows choose."""
    for table in dict.fromkeys(record["table"] for record in records):
        for method, labels in _LINES.items():
            runs = [r for r in records if r["table"] == table and r["label"] in labels and _is_at_floor(r)]
            if runs and (chosen := choose(runs).runs):
                yield table, method, chosen


def _is_at_floor(record: Record) -> bool:
    return record["settings"].get("noise_floor") == FLOOR


def _covers(records: list[Record]) -> Outcome | None:
    chance = {record["table"]: coverage_chance(record["num_test"]) for record in records}
    return covers_better(table1_scores(records, "coverage_error"), chance)


def _additions(records: list[Record]) -> Outcome | None:
    """Whether our blocks and start improve the NLL of CaGP-Opt."""
    words, verdicts = [], []
    for table, found in table1_scores(records, "nll").items():
        if OPT in found and OURS in found:
            words.append(f"{table}, test NLL {found[OURS][0]:.3f}, without them {found[OPT][0]:.3f}")
            verdicts.append(found[OURS][0] < found[OPT][0])
    return on_tables(words, verdicts)


CLAIMS = (
    Claim(
        "CaGP-Opt matches or beats SVGP at half the rank (Table 1)",
        paper_nll("SVGP"),
        lambda records: matches_or_beats(table1_scores(records, "nll"), "SVGP"),
    ),
    Claim(
        "CaGP-Opt matches or beats SGPR at half the rank, except on bike (Table 1)",
        paper_nll("SGPR"),
        lambda records: matches_or_beats(table1_scores(records, "nll"), "SGPR", ("bike",)),
    ),
    Claim(
        "SVGP learns larger noise than CaGP-Opt (Table 1)",
        "Figure S5",
        lambda records: learns_less_noise(table1_scores(records, "noise")),
    ),
    Claim("CaGP-Opt's coverage error is below SVGP's (Table 1)", "Figure 4, on Power", _covers),
    Claim(
        "CaGP-Opt has a ramp-up phase early in training (Table 1)",
        "Figure 3",
        lambda records: ramps_up(table1_curves(records), OPT, True),
    ),
    Claim("Our starting values and blocks improve CaGP-Opt (Table 1)", "not in the paper", _additions),
)


def size_of(records: list[Record]) -> str:
    """ "full" for runs of the paper's length; otherwise how long the longest runs were trained."""
    limits = {limit for record in records if (limit := record["settings"].get("fit_time"))}
    return f"at most {max(limits, key=seconds_of)} of training" if limits else "full"
