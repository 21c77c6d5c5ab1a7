"""One training loop for all that is trained: the compact editor, specialists, experts.

`config` reads the YAML file, `registry` finds the trainee it names, `loop.train` trains it and goes on where
a killed run stopped. Import the modules themselves: this package imports nothing, so that data can be packed
on a machine without torch.
"""
