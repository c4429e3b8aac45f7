"""The store of plain files: one JSONL log a run, in a directory.

Rule: a line counts once it ends; everything beside the logs can be made again from them.
Start with `store`. `logs` finds and `log` reads and writes one log, `parts` does inboxes, blobs and listings, `spent` the accounts.
"""
