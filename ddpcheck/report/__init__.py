"""What a check found, as plain data; everything that is made of it.

Lives here: `Report` (data.py), renderers, pages of slugs, files, standard streams.
Not here: anything that decides a verdict. Nothing here imports torch.
"""
