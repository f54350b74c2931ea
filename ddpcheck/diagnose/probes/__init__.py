"""Evidence: what each link of the chain does, measured inside the ranks.

Lives here: reference.py and rank.py, the two sides; evidence.py, what they return.
Not here: any judgement. Causes are named in rules/ and facts/.
"""
