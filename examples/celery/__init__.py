"""Tasks of Celery that wait in a folder, and workers that are killed while they wait. Begin with `__main__`."""
