"""Programs as training code has them, one a file, and what a check of each must find.

`FAMILY/NAME.py` is broken, and FAMILY is that of its first cause; `sound/NAME.py` only
looks broken. Each is a whole target: `ddpcheck tests/corpus/loss/NAME.py --world-sizes
2 --modes ddp` is what the test runs, tests/diagnose/test_corpus.py. It begins with

    # expect: loss/sum-reduction verified, norm/local-batch-stats verified
    # shows: what is wrong, or why it looks wrong and is sound

`expect`: "equivalent", or the findings in their order, each a slug and what became of
its fix: "verified", "failed" (a run with it still differs), or "unverified" (no run was
made, or the fix of another cause mends this one too). A line that begins with "#   "
continues the one above. There may be

    # options: --world-sizes 3 (the command line's, where they are not as above)
    # needs: torch 2.9: why an older version cannot run it
    # slow: why it takes long

Programs are data: no linter or formatter reads them. `programs` reads headers;
`coverage` chooses those that every run of the tests checks.
"""
