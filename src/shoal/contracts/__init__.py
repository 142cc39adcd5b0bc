"""Contract test kits: what is missing from a policy, a kind of job or an admission check of your own.

Each kit takes your class (or its path, `package.module:object`) and returns sentences, none when it keeps the contract.
Use it in your own tests, or as `python -m shoal.contracts policy package.module:object`. Nothing of Shoal imports this.
"""

from shoal.contracts.check import missing_from_check
from shoal.contracts.job import missing_from_job
from shoal.contracts.policy import missing_from_policy

__all__ = ["missing_from_check", "missing_from_job", "missing_from_policy"]
