"""The storage's rules without its machinery: which artifacts are here, what each request gets, who has to leave.

Pure: time comes in as an argument, every effect goes out as a struct. `storage/service.py` is the only caller.
"""
