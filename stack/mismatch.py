"""What is said of a file whose hash is not the locked one, and finding such a file where uv does not say so."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

from abi_checks.errors import SourceError
from stack.availability import Availability, Origin
from stack.definition import StackDefinition, Upload
from stack.files import sha256_of


def describe_mismatch(definition: StackDefinition, requirement: str, expected: str, found: str) -> str:
    """What to tell about a file that was refused for its hash; names the upload where the definition knows it."""
    name = requirement.partition(" ")[0].partition("==")[0]
    uploads = next((wheel.uploads for wheel in definition.wheels if wheel.name == name), ())
    known = {upload.sha256: upload for upload in uploads}
    lines = [
        f"{requirement}: refused, its hash is not the locked one",
        f"  locked: sha256 {expected}{_upload(known.get(expected))}",
        f"  found:  sha256 {found}{_upload(known.get(found))}",
    ]
    if found in known:
        lines.append(f"To take that upload, put its hash into {definition.path.name} and make the lock again.")
    elif uploads:
        lines.append(
            f"It is none of the {len(uploads)} known uploads of {name}: find out what it is before you use it."
        )
    else:
        lines.append("The file was damaged or replaced. Get it from another source, or find out why it changed.")
    return "\n".join(lines)


def _upload(upload: Upload | None) -> str:
    return f", uploaded {upload.date} UTC from commit {upload.commit} ({upload.tag})" if upload else ""


def refuse_damaged_files(availability: Availability) -> None:
    """Hash the wheelhouse's files of wheels on no index: of a damaged one uv may say only that it cannot unpack it.

    :raises SourceError: for the first whose hash is not the locked one
    """
    for source in availability.direct:
        if source.origin is Origin.WHEELHOUSE:
            found = sha256_of(Path(url2pathname(urlsplit(source.address).path)))
            item = source.distribution
            if found not in item.hashes:
                raise SourceError(
                    describe_mismatch(availability.definition, f"{item.name} @ {source.address}", item.hashes[0], found)
                )
