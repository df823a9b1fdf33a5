# SPDX-License-Identifier: MIT
"""``python -m npukit``."""

from npukit.cli import main

if __name__ == "__main__":
    main(prog_name="npukit")
