"""Pure functions of a `Report`, which import no torch.

terminal     at most 25 lines of text; terminal_matrix, terminal_findings: parts of it;
             terminal_page: its lines
html         one file, offline; html_views: what its templates read; pictures, charts:
             its drawings; page: a rule's page in it
github       workflow commands and a job summary
junit        JUnit XML
sarif        SARIF 2.1.0
failure      the text of a failed test

What they share, each defined once:
wording      sentences
status       what a run or report came to, in one word
divergence   where differences lie: the first, the worst
left_out     what was not compared, and why
numbers      how a number is written
"""
