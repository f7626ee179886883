"""Datasets: which examples a version has, and the files that it is written to."""
