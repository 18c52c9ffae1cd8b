"""Reminders: four worker processes of a web application that schedule, and one that sends (`__main__.py`).

    POST /reminders ──> worker 1..4 (FastAPI) ──┐
                                                ├── one folder, afterlog.open(…, shared=True) in each
    outbox <── sender ──────────────────────────┘

No server, no broker: whoever of the five comes first serves the others, and when it goes another one does.
"""
