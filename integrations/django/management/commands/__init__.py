"""The commands: `manage.py afterlog_worker`."""
