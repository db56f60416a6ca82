"""What `hpcgnn doctor` looks at, a file a subject; each gives findings, and nothing here prints or imports torch at
the top.
"""
