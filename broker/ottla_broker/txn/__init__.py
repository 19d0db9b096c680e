"""Transactions: one state machine per transactional id, stored in `__transaction_state`. No clock, no loop, no disk."""
