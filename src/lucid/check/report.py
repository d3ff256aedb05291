"""What a check found, for people and for machines."""

from __future__ import annotations

import textwrap
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Status = Literal["ok", "fail", "skipped"]
_MARKS = {"ok": "ok  ", "fail": "FAIL", "skipped": "--  "}
_WIDTH = 116


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was seen."""

    name: str
    """What it is about, such as "rng.numpy" or "model.head.weight"."""
    text: str
    advice: str = ""
    is_fault: bool = True
    """False: worth knowing, nothing to repair."""


@dataclass(slots=True)
class Section:
    """One question and its answer."""

    name: str
    question: str
    findings: list[Finding] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    """Facts for people."""
    skipped: str = ""
    """Why the question could not be answered."""

    @property
    def status(self) -> Status:
        """ "fail" if there is a fault, "skipped" if there is no answer."""
        if any(finding.is_fault for finding in self.findings):
            return "fail"
        return "skipped" if self.skipped else "ok"

    def fault(self, name: str, text: str, advice: str = "") -> None:
        """Add something to repair."""
        self.findings.append(Finding(name, text, advice))

    def note(self, name: str, text: str, advice: str = "") -> None:
        """Add something worth knowing."""
        self.findings.append(Finding(name, text, advice, is_fault=False))


@dataclass(slots=True)
class Report:
    """All sections of a check."""

    sections: list[Section] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether there is nothing to repair."""
        return all(section.status != "fail" for section in self.sections)

    @property
    def exit_code(self) -> int:
        """0: nothing to repair; 1: something is."""
        return 0 if self.ok else 1

    @property
    def faults(self) -> list[Finding]:
        """Everything to repair."""
        return [finding for section in self.sections for finding in section.findings if finding.is_fault]

    def __getitem__(self, name: str) -> Section:
        return next(section for section in self.sections if section.name == name)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain values."""
        return {
            "ok": self.ok,
            "sections": {
                section.name: {
                    "status": section.status,
                    "question": section.question,
                    "skipped": section.skipped,
                    "findings": [asdict(finding) for finding in section.findings],
                    "facts": section.facts,
                }
                for section in self.sections
            },
        }

    def text(self) -> str:
        """Return the report as a table with its findings."""
        lines: list[str] = []
        for section in self.sections:
            lines.append(f"{_MARKS[section.status]}  {section.name:<14} {section.question}")
            lines += [f"      {line}" for line in section.lines]
            if section.skipped:
                lines += _wrap(f"not answered: {section.skipped}", "      ")
            for finding in section.findings:
                mark = "*" if finding.is_fault else "-"
                lines += _wrap(f"{mark} {finding.name}: {finding.text}", "      ")
                if finding.advice:
                    lines += _wrap(f"-> {finding.advice}", "        ")
        faults = len(self.faults)
        lines.append("nothing to repair" if self.ok else f"{faults} to repair" if faults > 1 else "1 to repair")
        return "\n".join(lines)


def _wrap(text: str, indent: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent=indent, subsequent_indent=indent + "  ") or [indent]
