"""From a recipe file to a dataset: plan the parts, make them on an engine, finish across samples."""
