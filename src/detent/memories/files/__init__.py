"""The memory in a directory of text files, which a person edits with an editor and git keeps.

Rule: a key is a path below the directory, no link is followed, and a file is replaced as a whole or not at all.
Start with `memory`. `entries` reads and writes files by key, `cache` keeps some of them, `texts` turns an item into a text and back.
"""
