"""Say whether every shared object of a Python environment will load, and why not.

This package knows nothing of ``stack``: it judges any virtual environment, folder, shared
object, wheel, wheelhouse or requirement.
"""
