"""Imports that failed and were ignored, and that a later failure misses.

At start SGLang imports the modules of all models and multimodal processors. One that can't be imported is told as
"Ignore import error when loading MODULE: REASON" and left out (0.5.9: models/registry.py line 107 and
managers/multimodal_processor.py line 22). Most servers have such lines and work, so a line explains a failure only
where the failure names an architecture that its module would have registered.
"""

from __future__ import annotations

import re

from stack.serve.loglines import LogLine

NEEDLES = (b"Ignore import error when loading ", b"No processor registered for architecture", b"Model architectures [")
_KEPT = 2048
"""Modules remembered; SGLang has a few hundred."""

_LINE = re.compile(r"Ignore import error when loading (?P<module>[\w.]+)[:.] ")
_MISSED = re.compile(r"(?:No processor registered for architecture:|Model architectures) \[([^\]]*)\]")


class IgnoredImports:
    """The imports that a log says were ignored, by the last part of their modules' names."""

    def __init__(self) -> None:
        self._lines: dict[str, LogLine] = {}

    def remember(self, number: int, text: str) -> bool:
        """Whether the line tells of an ignored import; it is remembered then."""
        if not (found := _LINE.search(text)):
            return False
        name = found["module"].rpartition(".")[2].replace("_", "").lower()
        if name and len(self._lines) < _KEPT:
            self._lines.setdefault(name, LogLine(number, text))
        return True

    def missed_by(self, text: str) -> LogLine | None:
        """The ignored import that a failure's line misses, by the architecture that the line names."""
        if not (found := _MISSED.search(text)):
            return None
        for architecture in re.findall(r"\w+", found[1]):
            plain = architecture.replace("_", "")
            # KimiK25ForConditionalGeneration is of kimi_k25; Gemma3nForCausalLM is not of gemma3.
            for end in range(len(plain), 0, -1):
                if (end == len(plain) or plain[end].isupper()) and plain[:end].lower() in self._lines:
                    return self._lines[plain[:end].lower()]
        return None
