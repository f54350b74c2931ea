"""One rule, one file, one page: FAMILY_NAME.py is the rule FAMILY/NAME."""
