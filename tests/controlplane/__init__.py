"""The real control plane of the integration tests: built once into the user's cache, started fresh for each test
module.
"""
