"""Reports and estimates as people and other programs read them: formats, computes nothing."""
