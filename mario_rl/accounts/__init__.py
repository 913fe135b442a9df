"""What both sides count: the ledger, and flow control, which says who has to wait."""
