"""`python -m dcinterp` is `dcinterp`."""

from dcinterp.cli import main

main()
