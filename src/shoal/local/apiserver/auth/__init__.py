"""Authentication and authorization: certificates, tokens, RBAC, reviews, and the gate that every request passes."""

from shoal.local.apiserver.auth.authentication import Authenticator
from shoal.local.apiserver.auth.authorization import Authorizer
from shoal.local.apiserver.auth.certificates import ServerIdentity
from shoal.local.apiserver.auth.reviews import Reviews
from shoal.local.apiserver.auth.tokens import Tokens

__all__ = ["Authenticator", "Authorizer", "Reviews", "ServerIdentity", "Tokens"]
