"""The broker's side of TLS, SASL and ACLs.

This file imports nothing: a broker without security does not load these modules.
"""
