"""``cagp bench``: speed, memory and quality, measured on this machine."""

import argparse
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple


class Suite(NamedTuple):
    """A suite: its line in the help, and the function that adds its options, as MODULE:NAME."""

    summary: str
    add_to: str
    measures: bool = True  # it prints records


SUITES = {
    "engine": Suite("kernel evaluations per second of every backend", "engine:add_to"),
    "step": Suite("time and peak memory of a training step of CaGP-Opt", "step:add_to"),
    "scale": Suite("time and memory of a minibatch step at growing numbers of rows", "scale:add_to"),
    "predict": Suite("rows per second that each method predicts, with error bars", "predict_speed:add_to"),
    "cluster": Suite("what a fit on many machines costs, modelled from what is measured here", "cluster:add_to"),
    "disk": Suite("a generated table in files, fitted in pieces: quality, time and memory", "table_on_disk:add_to"),
    "run": Suite("suites: tables, methods, seeds and learning rates, with records that resume", "cli.suites:add_to"),
    "results": Suite("a page of results from records", "results_page:add_to", measures=False),
    "minibatches": Suite("CaGP-Opt in minibatches of your tables: which sizes", "minibatches:add_to"),
    "far-blocks": Suite("how many rows of your tables the kernel of CaGP-Opt does not reach", "far_blocks:add_to"),
    "presets": Suite("loss and validation NLL against time, for each training preset", "presets:add_to"),
    "local": Suite("speed of CaGP-Local", "local_speed:add_to"),
    "neighbours": Suite("time and memory to index rows and to find the nearest ones", "neighbour_speed:add_to"),
    "tables": Suite("the default regressor beside boosted trees and GPBoost on your tables", "table_quality:add_to"),
    "counts": Suite("regressors for counts beside boosted trees on your tables", "likelihood_quality:add_counts"),
    "outliers": Suite("regressors for tables whose targets have gross errors", "likelihood_quality:add_outliers"),
    "classes": Suite("the classifier beside boosted trees on your tables", "class_quality:add_to"),
    "structures": Suite("what the default regressor chooses on data with known structure", "structure_quality:add_to"),
    "honesty": Suite("coverage by place on generated tables whose truth is known", "honesty:add_to"),
    "small": Suite("time to cross-validate a small table, beside one local fit of a large one", "small_tables:add_to"),
}


class SuiteParser(argparse.ArgumentParser):
    """The parser of one suite: it loads the suite, and with it torch, when this suite is called."""

    suite: Suite

    def parse_known_args(self, *arguments: Any, **options: Any) -> Any:
        """Add the options of the suite, then parse."""
        if self.suite.measures:
            self.add_argument("--json", action="store_true", help="print JSON records instead of a table")
            self.add_argument(
                "--data-dir",
                type=Path,
                metavar="DIR",
                help="where your copies of data sets are (default: CAGP_DATA; then the cache, then the UCI archive)",
            )
        module, name = self.suite.add_to.split(":")
        getattr(import_module(f"cagp_bench.{module}"), name)(self)
        return super().parse_known_args(*arguments, **options)


def add_to(command: argparse.ArgumentParser) -> None:
    """The suites of ``cagp bench``."""
    command.description = "Measure speed, memory and quality on this machine."
    command.epilog = "examples:\n  cagp bench engine\n  cagp bench step --json\n  cagp bench run smoke"
    parsers = command.add_subparsers(required=True, metavar="SUITE", parser_class=SuiteParser)
    for name, suite in SUITES.items():
        parser = parsers.add_parser(name, help=suite.summary, formatter_class=command.formatter_class)
        parser.suite = suite
