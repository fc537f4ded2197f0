"""Who a peer is and what it may do: the broker's side of TLS, SASL and ACLs.

Nothing is imported here: a broker whose listeners are all open needs none of it.
"""
