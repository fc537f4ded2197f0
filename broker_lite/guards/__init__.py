"""What each kind of request needs an ACL for, in front of its handler.

Nothing is imported here: a broker without an authorizer needs none of it.
"""
