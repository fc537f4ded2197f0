"""Observation of clients: metrics, traces, interceptors."""
