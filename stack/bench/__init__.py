"""Measure a server: plan the runs, drive SGLang's own load generator, check and keep what it says, and answer with it.

The load generator is ``sglang.bench_serving`` of the environment under test; nothing here sends a request under load.
"""
