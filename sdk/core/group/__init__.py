"""Membership of consumer groups, in both protocols."""
