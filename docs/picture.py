"""Make docs/report.svg, the README's picture of a report: ``python docs/picture.py OBJECT``.

OBJECT is a shared object in an environment; the picture shows sgl_kernel's common_ops in SGLang 0.5.9's environment
after torch was exchanged for 2.10.0.
"""

import io
import re
import sys
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.text import Text

from abi_checks.api import Options, check_source
from abi_checks.report.text import lines
from abi_checks.targets import Surroundings, find_target

COLUMNS = 118


def main() -> None:
    """Judge the object and write the picture; the environment's own path is not shown."""
    target = find_target(sys.argv[1], Surroundings())
    report = replace(check_source(target.source, Options(only=target.only)), target="~/serving/env")
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    for line, style in lines(report):
        console.print(Text(line, style=style))
    name = Path(sys.argv[1]).name
    picture = Path(__file__).with_name("report.svg")
    svg = console.export_svg(title=f"abi-check ~/serving/env/…/{name}", unique_id="report")
    # Without the web fonts that rich names: the picture is the same wherever it is looked at.
    picture.write_text(re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL), encoding="utf-8")


if __name__ == "__main__":
    main()
