"""Reads what users declare: functions, their signatures and options."""
