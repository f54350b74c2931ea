"""Pages for --explain and --rules.

Lives here: a Markdown file per slug, in rules/, verdicts/ and errors/; their reader.
Not here: detectors of rules (diagnose/rules/), the messages of errors.
"""
