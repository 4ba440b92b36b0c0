"""What training costs: memory of a step of CaGP-Opt against the rows, and inference of CaGP-CG beside CGGP."""

import time
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import Any, final

import torch
from matplotlib.figure import Figure
from torch import Tensor

from cagp import metrics
from cagp.methods import CGGP, CaGPCG, Method
from cagp.plots import SMALL, styled
from cagp.posteriors import CGPosterior
from cagp_bench.processes import in_new_process
from cagp_bench.reproduce.drawing import COLORS, panels, titled
from cagp_bench.reproduce.experiment import Claim, Experiment, Outcome, Record, Tables, Task, generator, select, values
from cagp_bench.reproduce.toy import Truth, draw

TRUTH = Truth(lengthscale=0.3, outputscale=1.0, noise=0.01)


@dataclass(frozen=True)
class Size:
    """How much is measured."""

    num_seeds: int
    memory_rows: tuple[int, ...]
    num_actions: int
    solve_rows: tuple[int, ...]
    num_test: int = 200
    num_dims: int = 3
    preconditioned: int = 100  # columns of CGGP's preconditioner, where it has one


SIZES = {
    "tiny": Size(1, (200, 400), 4, (60,), 10, 2, 5),
    "quick": Size(1, (4000, 8000, 16000, 32000), 64, (300, 600, 1200)),
    "full": Size(5, (25_000, 50_000, 100_000, 200_000, 400_000), 512, (1000, 2000, 4000, 8000), 1000),
}


def measure_solves(size: Size, num_rows: int, seed: int) -> dict[str, Any]:
    """Seconds of inference by CGGP, and by CaGP-CG with as many iterations, and the errors of both."""
    every = 2 * torch.rand(num_rows + size.num_test, 2, generator=generator(seed), dtype=torch.float64) - 1
    targets = draw(TRUTH, every, seed)
    X, y, test = every[:num_rows], targets[:num_rows], (every[num_rows:], targets[num_rows:])
    prior = TRUTH.prior(2)
    plain = CGGP(prior, precondition_rank=1, max_iterations=num_rows)
    first = _inference(plain, X, y, test)
    iterations = first.pop("iterations")
    better = _inference(CGGP(prior, precondition_rank=size.preconditioned, max_iterations=num_rows), X, y, test)
    own = _inference(CaGPCG(prior, min(iterations, num_rows)), X, y, test)
    return {"iterations": iterations, "CGGP": first, "CGGP, preconditioned": better, "CaGP-CG": own}


def _inference(method: Method, X: Tensor, y: Tensor, test: tuple[Tensor, Tensor]) -> dict[str, Any]:
    start, cpu = time.perf_counter(), time.process_time()
    posterior = method.condition(X, y)
    mean, variance = posterior.predict(test[0], noise=True)
    found: dict[str, Any] = {"seconds": time.perf_counter() - start, "cpu_s": time.process_time() - cpu}
    found |= {"rmse": metrics.rmse(test[1], mean), "nll": metrics.nll(test[1], mean, variance)}
    if isinstance(posterior, CGPosterior):
        found["iterations"] = posterior.representer_status.num_iterations
    return found


def _linear(records: list[Record]) -> Outcome | None:
    found = sorted((r["settings"]["rows"], r["peak_bytes"]) for r in select(records, what="memory"))
    if len(found) < 2:
        return None
    words = ", ".join(f"{rows:,} rows {size / 1e6:.0f} MB" for rows, size in found)
    (rows, size), (more_rows, more) = found[0], found[-1]
    growth = more / max(size, 1)
    return Outcome(
        f"peak memory of a step: {words}; {more_rows / rows:.0f} times the rows take {growth:.1f} times the memory",
        growth <= 1.2 * more_rows / rows,
    )


def _half(records: list[Record]) -> Outcome | None:
    found = select(records, what="solves")
    if not found:
        return None
    words, ratios = [], []
    for rows in sorted(values(found, "rows")):
        runs = select(found, rows=rows)
        seconds = {name: fmean(r[name]["cpu_s"] for r in runs) for name in ("CGGP", "CGGP, preconditioned", "CaGP-CG")}
        ratio = seconds["CaGP-CG"] / min(seconds["CGGP"], seconds["CGGP, preconditioned"])
        ratios.append(ratio)
        words.append(f"{rows:,} rows {ratio:.2f}")
    start = "processor time of CaGP-CG as a share of CGGP's (the faster of two)"
    return Outcome(f"{start}: {', '.join(words)}", all(ratio <= 0.5 for ratio in ratios))


def _same(records: list[Record]) -> Outcome | None:
    found = select(records, what="solves")
    if not found:
        return None
    rmse, nll = ([fmean(r[name][key] for r in found) for name in ("CaGP-CG", "CGGP")] for key in ("rmse", "nll"))
    words = f"RMSE {rmse[0]:.4f} and {rmse[1]:.4f}, NLL {nll[0]:.3f} and {nll[1]:.3f}"
    return Outcome(f"CaGP-CG and CGGP: {words}", abs(rmse[0] / rmse[1] - 1) < 0.01)


@final
class Costs(Experiment):
    """Statements about cost, which the paper makes without a figure."""

    title = "Memory of a training step, and the cost of inference with conjugate gradients"
    paper = (
        "The text says that memory is linear in the number of rows, O(n i), and that CaGP-CG has CGGP's mean, nearly "
        "its predictive error, and half of its cost of inference."
    )
    differs = (
        "There is no such figure in the paper. Kernel products are streamed here, so that memory can grow less than in "
        "proportion to the rows."
    )
    source = "costs"
    claims = (
        Claim("Memory of training is linear in the number of rows", "O(n i), section 4.1", _linear),
        Claim("CaGP-CG costs half of CGGP for inference", "half, section 5", _half),
        Claim("CaGP-CG has nearly the predictive error of CGGP", "nearly identical, section 5", _same),
    )

    def tasks(self, size: str, tables: Tables) -> list[Task]:
        s = SIZES[size]
        common = {"experiment": self.source, "size": size}
        memory = {"num_actions": s.num_actions, "num_dims": s.num_dims}
        solves = {"num_test": s.num_test, "preconditioned": s.preconditioned, **TRUTH._asdict()}
        found = [
            Task(
                {**common, "what": "memory", "rows": n, "options": memory},
                partial(_in_new_process, {"num_rows": n, **memory}),
            )
            for n in s.memory_rows
        ]
        return found + [
            Task(
                {**common, "what": "solves", "rows": n, "seed": seed, "options": solves},
                partial(measure_solves, s, n, seed),
            )
            for seed in range(s.num_seeds)
            for n in s.solve_rows
        ]

    def draw(self, records: list[Record]) -> Figure:
        figure, (axes,) = panels(1, 2, 5.5, 3.6)
        memory = sorted((r["settings"]["rows"], r["peak_bytes"] / 1e6) for r in select(records, what="memory"))
        if memory:
            axes[0].plot(*zip(*memory, strict=True), "o-", color=COLORS["CaGP-Opt"], label="CaGP-Opt")
            rows = [n for n, _ in memory]
            axes[0].plot(rows, [memory[0][1] * n / rows[0] for n in rows], "--", color="#8b949e", label="in proportion")
        found = select(records, what="solves")
        colors = {"CaGP-CG": COLORS["CaGP-CG"], "CGGP": COLORS["CGGP"], "CGGP, preconditioned": "#7c4a03"}
        for name, color in colors.items():
            sizes = sorted(values(found, "rows")) if found else []
            seconds = [fmean(r[name]["cpu_s"] for r in select(found, rows=n)) for n in sizes]
            axes[1].plot(sizes, seconds, "o-", color=color, label=name)
        for ax, title, label in (
            (axes[0], "a training step", "peak memory (MB)"),
            (axes[1], "inference", "processor time (s)"),
        ):
            ax.set(xscale="log", yscale="log")
            ax.legend(fontsize=SMALL, frameon=False)
            titled(ax, title)
            styled(ax, "training rows", label)
        return figure

    def caption(self, records: list[Record]) -> str:
        words = []
        if memory := select(records, what="memory"):
            o = memory[0]["settings"]["options"]
            words.append(
                "Left: peak memory of a step of CaGP-Opt (loss and gradient) above that of the data, "
                f"{o['num_actions']} actions, each in a process of its own; dashed: in proportion to the rows."
            )
        if found := select(records, what="solves"):
            o = found[0]["settings"]["options"]
            words.append(
                "Right: processor time to condition on the rows and to predict means and variances of "
                f"{o['num_test']:,} test rows, mean of {len(values(found, 'seed'))} draws; CGGP solves to 1e-4, with "
                f"a preconditioner of rank 1 or {o['preconditioned']}, and CaGP-CG has as many actions as the former "
                f"has iterations ({min(r['iterations'] for r in found)} to {max(r['iterations'] for r in found)})."
            )
        return " ".join(words)


def _in_new_process(options: dict[str, Any]) -> dict[str, Any]:
    found = in_new_process("cagp_bench.reproduce.step_memory", options)
    if "error" in found:
        raise RuntimeError(found["error"])
    return found


EXPERIMENT = Costs()
