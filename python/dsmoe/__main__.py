"""`python -m dsmoe` is the program: the one that is installed with the package, in place of this process."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def program() -> Path:
    return Path(__file__).parent / "bin" / "dsmoe"


def main() -> None:
    path = program()
    if not path.exists():
        sys.exit("dsmoe: this package was built without the program; build it with DSMOE_BUILD_CLI=ON")
    os.execv(path, ["dsmoe", *sys.argv[1:]])


if __name__ == "__main__":
    main()
