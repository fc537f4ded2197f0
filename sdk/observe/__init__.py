"""What clients tell of themselves: metrics, traces, interceptors."""
