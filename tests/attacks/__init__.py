"""The cluster attacked on purpose: `make attacks` carries everything out and prints what was tried and refused."""
