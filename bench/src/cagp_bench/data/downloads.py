"""Files from the web: retried, checked, and whole or not there at all.

A file whose digest is known is checked against it. Where none is known, the digest of the first download is written
beside the file (``NAME.sha256``), and every later use of the file is checked against that.
"""

import hashlib
import http.client
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from cagp.files import replacing, write_atomically

TRIES, DELAY, TIMEOUT = 3, 2.0, 60.0
"""How often an address is tried, the seconds before the second try (they double), and how long a silence may last."""

BLOCK = 1 << 16
AGENT = {"User-Agent": "cagp"}  # some servers refuse the one of urllib


class DownloadError(OSError):
    """No address gave the file."""


class DigestError(ValueError):
    """A file is not the one that was expected."""


def digest_of(path: Path) -> str:
    """The SHA-256 digest of a file, in hexadecimal digits."""
    found = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            found.update(block)
    return found.hexdigest()


def digest_file(path: Path) -> Path:
    """Where the digest of the first download of a file is kept."""
    return path.with_name(path.name + ".sha256")


def check_digest(path: Path, known: str | None = None) -> None:
    """Raise DigestError unless the file has the known digest or, without one, that of its first download, if any."""
    recorded = digest_file(path)
    if known is None and not recorded.is_file():
        return
    expected = known if known is not None else recorded.read_text(encoding="ascii").split()[0]
    found = digest_of(path)
    if found != expected:
        which = "known" if known is not None else f"of its first download ({recorded.name})"
        raise DigestError(
            f"{path} has the SHA-256 digest {found}, expected {expected}, the one {which}; remove the file to download "
            "it again" + ("." if known is not None else ", and the digest too if you trust the new file.")
        )


def download(
    addresses: Sequence[str],
    path: Path,
    *,
    sha256: str | None = None,
    tries: int = TRIES,
    delay: float = DELAY,
    timeout: float = TIMEOUT,
    progress: bool = True,
) -> None:
    """Write the file of the first address that gives it to ``path``, whole or not at all.

    A server that does not answer, breaks off or has an error of its own is tried again; one that says there is no such
    file is not. Raises DownloadError with what each address said, and DigestError for another file than expected.
    """
    said = []
    for address in addresses:
        for attempt in range(tries):
            if attempt:
                time.sleep(delay * 2 ** (attempt - 1))
            try:
                _download_once(address, path, sha256, timeout, progress)
                return
            except (OSError, http.client.HTTPException) as error:
                reason = _in_words(error)
                final = isinstance(error, urllib.error.HTTPError) and error.code < 500 and error.code != 429
                if progress:
                    print(f"download: {address}: {reason}", file=sys.stderr, flush=True)
                if final or attempt == tries - 1:
                    said.append(f"{address}: {reason}")
                    break
    raise DownloadError("; ".join(said))


def _download_once(address: str, path: Path, sha256: str | None, timeout: float, progress: bool) -> None:
    """One attempt; its errors are those of urllib, or an OSError where the body ends early."""
    request = urllib.request.Request(address, headers=AGENT)
    found = hashlib.sha256()
    recorded = digest_file(path)
    expected = sha256 or (recorded.read_text(encoding="ascii").split()[0] if recorded.is_file() else None)
    with urllib.request.urlopen(request, timeout=timeout) as answer, replacing(path) as file:
        length = answer.headers.get("Content-Length")
        total = int(length) if length is not None and length.isdigit() else None
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
        done, console = 0, Console(stderr=True)
        with Progress(*columns, console=console, transient=True, disable=not progress) as bar:
            task = bar.add_task(path.name, total=total)
            while block := answer.read(BLOCK):
                file.write(block)
                found.update(block)
                done += len(block)
                bar.update(task, completed=done)
        if total is not None and done != total:
            raise ConnectionError(f"the file ends after {done:,} of {total:,} bytes")
        if expected is not None and found.hexdigest() != expected:
            raise DigestError(
                f"{address} has the SHA-256 digest {found.hexdigest()}, expected {expected}; nothing was written. The "
                "file there may have changed: put a copy that you trust into its place by hand."
            )
    if sha256 is None:
        write_atomically(recorded, f"{found.hexdigest()}  {path.name}\n".encode("ascii"))


def _in_words(error: BaseException) -> str:
    if isinstance(error, urllib.error.HTTPError):
        return f"{error.code} {error.reason}"
    if isinstance(error, urllib.error.URLError):
        return str(error.reason)
    if isinstance(error, http.client.IncompleteRead):
        return f"the file ends after {len(error.partial):,} bytes of a part"
    return str(error) or type(error).__name__
