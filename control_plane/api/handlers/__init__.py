"""What each verb does, by group: functions over a transaction; bound to the verbs by `table.py`."""
