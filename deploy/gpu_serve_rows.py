"""Rows of gpu_serve_test.py's table, and what they show together."""

import dataclasses


@dataclasses.dataclass
class Row:
    way: str
    flight: str = ""
    share: str = ""
    figures: dict = dataclasses.field(default_factory=dict)
    preempted: int = 0
    rebuilt: int = 0
    failovers: int = 0
    start_s: float = 0.0
    check_s: float = 0.0
    problem: str = ""
    has_control: bool = True

    def cells(self):
        def figure(name):
            return str(self.figures.get(name, ""))

        cached = (f"{figure('cached_prompt_tokens')} / {figure('verifier_cached_prompt_tokens')}"
                  if self.figures else "")
        seconds = f"{self.start_s:.0f} + {self.check_s:.1f}" if self.start_s else f"{self.check_s:.1f}"
        return [self.way, self.flight, self.share, figure("deterministic_requests"),
                figure("deterministic_divergences"), figure("ordinary_requests"),
                figure("ordinary_divergences"), figure("windows"), figure("rollbacks"),
                str(self.preempted), str(self.rebuilt), str(self.failovers), cached,
                figure("committed_tokens"), figure("fingerprint")[:12], seconds,
                f"FAILED: {self.problem}" if self.problem else "passed"]


HEADER = ["way", "in flight", "ordinary share", "deterministic", "diverged", "ordinary", "diverged",
          "windows", "rollbacks", "preempted", "rebuilt", "failovers",
          "cached, decoder / verifier", "committed tokens", "fingerprint", "seconds", "result"]


def report(rows, seconds):
    """Prints the table; whether all is well."""
    print()
    for cells in [HEADER, ["---"] * len(HEADER), *(row.cells() for row in rows)]:
        print(f"| {' | '.join(cells)} |")
    controlled = [row.figures for row in rows if row.has_control]
    rollbacks = sum(figures.get("rollbacks", 0) for figures in controlled)
    diverged = sum(figures.get("ordinary_divergences", 0) for figures in controlled)
    tokens = sum(row.figures.get("committed_tokens", 0) for row in rows)
    print(f"\n{tokens} deterministic tokens in {len(rows)} rows, {rollbacks} rollbacks, "
          f"{diverged} ordinary answers changed, {seconds:.0f} s")
    if rollbacks == 0 or diverged == 0:
        print("FAILED: no control: nothing was rolled back, or no ordinary answer changed")
    passed = all(not row.problem for row in rows)
    return bool(rows) and passed and rollbacks > 0 and diverged > 0
