"""Contract test kits: what is missing from a policy, a kind of job or an admission check of your own.

Each kit is a function that takes the path of your object (`package.module:object`) and returns sentences, none when it
keeps the contract. Use it in your own tests, or as `python -m shoal.contracts policy package.module:object`. Nothing of
Shoal itself imports this.
"""

from shoal.contracts.policy import missing_from_policy

__all__ = ["missing_from_policy"]
