"""Rows of gpu_serve_test.py's table, and what they show together."""

import dataclasses

PASSED = "passed"
FAILED = "FAILED"
NOT_RUN = "not run"


@dataclasses.dataclass
class Row:
    way: str
    placement: str = ""
    flight: str = ""
    share: str = ""
    figures: dict = dataclasses.field(default_factory=dict)
    preempted: int = 0
    rebuilt: int = 0
    failovers: int = 0
    start_s: float = 0.0
    check_s: float = 0.0
    problem: str = ""
    left_out: str = ""  # why it was not run: what this machine has not
    has_control: bool = True

    def result(self):
        if self.problem:
            return f"{FAILED}: {self.problem}"
        return f"{NOT_RUN}: {self.left_out}" if self.left_out else PASSED

    def cells(self):
        def figure(name):
            return str(self.figures.get(name, ""))

        cached = (f"{figure('cached_prompt_tokens')} / {figure('verifier_cached_prompt_tokens')}"
                  if self.figures else "")
        seconds = f"{self.start_s:.0f} + {self.check_s:.1f}" if self.start_s else f"{self.check_s:.1f}"
        if self.left_out:
            seconds = ""
        return [self.way, self.flight, self.share, figure("deterministic_requests"),
                figure("deterministic_divergences"), figure("ordinary_requests"),
                figure("ordinary_divergences"), figure("windows"), figure("rollbacks"),
                str(self.preempted), str(self.rebuilt), str(self.failovers), cached,
                figure("committed_tokens"), figure("fingerprint")[:12], seconds, self.result()]


HEADER = ["way", "in flight", "ordinary share", "deterministic", "diverged", "ordinary", "diverged",
          "windows", "rollbacks", "preempted", "rebuilt", "failovers",
          "cached, decoder / verifier", "committed tokens", "fingerprint", "seconds", "result"]


def control(rows):
    """What is wrong with the whole: without rollbacks and changed ordinary answers it shows nothing."""
    figures = [row.figures for row in rows if row.has_control]
    if not sum(each.get("rollbacks", 0) for each in figures):
        return "no control: nothing was rolled back"
    if not sum(each.get("ordinary_divergences", 0) for each in figures):
        return "no control: no ordinary answer changed"
    return ""


def write_placements(path, placements, rows):
    """A line for each placement, and for the control: its name, result, seconds and a note, between
    tabs."""
    def line(name, result, seconds="0", note=""):
        return "\t".join([name, result, seconds, note]) + "\n"

    lines = []
    for placement in placements:
        own = [row for row in rows if row.placement == placement]
        seconds = f"{sum(row.start_s + row.check_s for row in own):.0f}"
        problems = [row.problem for row in own if row.problem] or ([] if own else ["did not happen"])
        left_out = [row.left_out for row in own if row.left_out]
        if problems:
            lines.append(line(placement, FAILED, seconds, problems[0].replace("\t", " ")))
        elif left_out:
            lines.append(line(placement, NOT_RUN, note=left_out[0]))
        else:
            lines.append(line(placement, PASSED, seconds))
    problem = control(rows)
    lines.append(line("control", FAILED if problem else PASSED, note=problem))
    path.write_text("".join(lines), encoding="utf-8")


def report(rows, placements, seconds, allow_left_out):
    """Prints the table; whether all is well."""
    print()
    for cells in [HEADER, ["---"] * len(HEADER), *(row.cells() for row in rows)]:
        print(f"| {' | '.join(cells)} |")
    controlled = [row.figures for row in rows if row.has_control]
    rollbacks = sum(figures.get("rollbacks", 0) for figures in controlled)
    diverged = sum(figures.get("ordinary_divergences", 0) for figures in controlled)
    tokens = sum(row.figures.get("committed_tokens", 0) for row in rows)
    run = [row for row in rows if not row.left_out]
    print(f"\n{tokens} deterministic tokens in {len(run)} rows, {rollbacks} rollbacks, "
          f"{diverged} ordinary answers changed, {seconds:.0f} s")
    problems = [control(rows)]
    missing = set(placements) - {row.placement for row in rows}
    if missing:
        problems.append(f"did not happen: {', '.join(sorted(missing))}")
    if len(run) < len(rows) and not allow_left_out:
        problems.append("left out what this machine cannot run; --allow_left_out allows that")
    for problem in filter(None, problems):
        print(f"FAILED: {problem}")
    return not any(problems) and all(not row.problem for row in rows)
