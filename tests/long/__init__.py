"""What takes too long for every change: `make test-long`. Each module is a part of an hour at most, by its own name."""
