"""Ways of composing attention heads, one file each: `registry.COMPOSERS` finds them, the config's `compose` names one.

    branch_table    how the branches are called: the one table
    branches        what composing is: the one definition
    base            the contract: what a way of composing says about itself
    registry        the scan that finds them
    dynamic, static, ...    a file for every way

To add one, put a file with a `Composer` here (docs/extending.md); tests/contract/test_compose.py then covers it.
"""
