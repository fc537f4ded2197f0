"""Quotas of clients: which are set, and how clients that exceed them are slowed down."""

from onceflow.broker_lite.quotas.client_quotas import ClientQuotas, QuotaFilter
from onceflow.broker_lite.quotas.enforcement import QuotaEnforcement

__all__ = ["ClientQuotas", "QuotaEnforcement", "QuotaFilter"]
