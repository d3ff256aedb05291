"""A run as one plain PyTorch file.

`lift` copies code of ours with what it needs, `data`, `model` and `loop` write the parts of the file, `whole` puts
them together.
"""
