"""Models that somebody serves behind the OpenAI chat API, at addresses that an administrator named.

`address` and `keys` are plain data and files; only `client` speaks HTTP.
"""
