"""What other systems write, read into the documents of this package, and what they print."""
