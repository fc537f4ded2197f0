"""Quotas of clients: what is set for whom, and how those who take too much are slowed down."""

from onceflow.broker_lite.quotas.client_quotas import ClientQuotas, QuotaFilter
from onceflow.broker_lite.quotas.enforcement import QuotaEnforcement

__all__ = ["ClientQuotas", "QuotaEnforcement", "QuotaFilter"]
